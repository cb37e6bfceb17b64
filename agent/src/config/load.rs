use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use toml::Table;

use super::check::{Problem, Severity};
use super::{Config, environment};

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration {}: {source}; begin with the example `agent.toml` that comes with the package", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It is not TOML, or a field is unknown, missing or of the wrong kind.
    #[error("{place}: {message}{overrides}")]
    Syntax {
        /// The file, with line and column where they are known.
        place: Place,
        /// What is wrong.
        message: String,
        /// The environment variables that were applied, if any: one of them may be the cause.
        overrides: Overrides,
    },
    /// An environment variable cannot be applied.
    #[error("environment variable {variable} {problem}")]
    Override {
        /// Its name.
        variable: String,
        /// What is wrong with it.
        problem: String,
    },
    /// Values contradict each other or are out of range; all of them are listed.
    #[error("{} has {} problem{}:{}", .path.display(), .problems.len(), if .problems.len() == 1 { "" } else { "s" }, lines(.problems))]
    Invalid {
        /// The file.
        path: PathBuf,
        /// Each problem.
        problems: Vec<Problem>,
    },
}

/// A place in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The file.
    pub path: PathBuf,
    /// Line and column, from 1.
    pub line_column: Option<(usize, usize)>,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())?;
        match self.line_column {
            Some((line, column)) => write!(f, ":{line}:{column}"),
            None => Ok(()),
        }
    }
}

/// Names of environment variables that took part.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Overrides(pub Vec<String>);

impl fmt::Display for Overrides {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.is_empty() {
            true => Ok(()),
            false => write!(f, " (after applying {})", self.0.join(", ")),
        }
    }
}

fn lines(problems: &[Problem]) -> String {
    problems.iter().map(|problem| format!("\n  {problem}")).collect()
}

impl Config {
    /// Reads a file, applies the environment's overrides (see [`super::PREFIX`]) and refuses what contradicts itself.
    /// The files that it names are not looked at: [`Config::check`] does that.
    ///
    /// # Errors
    /// Naming the file and the line or the fields.
    pub fn load(
        path: &Path,
        variables: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read {
            path: path.to_owned(),
            source,
        })?;
        Self::from_text(path, &text, variables)
    }

    /// [`Config::load`] of a text that is already read; `path` is used in messages.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn from_text(
        path: &Path,
        text: &str,
        variables: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, ConfigError> {
        let syntax = |error: &toml::de::Error, overrides: Overrides| ConfigError::Syntax {
            place: Place {
                path: path.to_owned(),
                line_column: error.span().map(|span| line_column(text, span.start)),
            },
            message: error.message().to_owned(),
            overrides,
        };
        let mut table: Table = text
            .parse()
            .map_err(|error| syntax(&error, Overrides::default()))?;
        let applied = environment::apply(&mut table, variables).map_err(|bad| ConfigError::Override {
            variable: bad.variable,
            problem: bad.problem,
        })?;
        let config: Self = if applied.is_empty() {
            toml::from_str(text).map_err(|error| syntax(&error, Overrides::default()))?
        } else {
            table.try_into().map_err(|error: toml::de::Error| {
                // The merged table has no lines. Where the file alone has the same fault, it is the place to show.
                match toml::from_str::<Self>(text) {
                    Err(alone) if alone.message() == error.message() => syntax(&alone, Overrides::default()),
                    _ => syntax(&error, Overrides(applied)),
                }
            })?
        };
        let problems: Vec<Problem> = config
            .contradictions()
            .into_iter()
            .filter(|problem| problem.severity == Severity::Error)
            .collect();
        match problems.is_empty() {
            true => Ok(config),
            false => Err(ConfigError::Invalid {
                path: path.to_owned(),
                problems,
            }),
        }
    }
}

fn line_column(text: &str, offset: usize) -> (usize, usize) {
    let before = text.get(..offset).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    (line, column)
}
