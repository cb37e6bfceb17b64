//! Why TensorRT did not do what was asked.

use std::fmt;
use std::path::PathBuf;

use edgeopt_models::Bytes;

/// What the ONNX parser has against a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParserProblem {
    /// The node, if the parser tells it.
    pub node: Option<String>,
    /// Its operator.
    pub op: Option<String>,
    /// What is wrong, in the parser's words.
    pub description: String,
}

impl ParserProblem {
    /// A problem from what the parser says. Lines about the missing driver, which building does not need, are left out.
    pub(super) fn new(node: Option<String>, op: Option<String>, said: &str) -> Self {
        let lines: Vec<&str> = said
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty() && !line.contains("cudaError 35"))
            .collect();
        let description = match lines.join(": ") {
            // The failed condition of an importer that takes nothing.
            text if text == "false" => "this TensorRT does not support the operator".to_owned(),
            text => text,
        };
        Self {
            node,
            op,
            description,
        }
    }
}

impl fmt::Display for ParserProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.node, &self.op) {
            (Some(node), Some(op)) => write!(f, "node {node:?} ({op}): ")?,
            (Some(node), None) => write!(f, "node {node:?}: ")?,
            (None, Some(op)) => write!(f, "a node of type {op}: ")?,
            (None, None) => {}
        }
        f.write_str(&self.description)?;
        match hint(&self.description) {
            Some(hint) => write!(f, "; {hint}"),
            None => Ok(()),
        }
    }
}

/// What to do about a description, where that is known.
fn hint(description: &str) -> Option<&'static str> {
    let known = [
        (
            "Plugin not found",
            "it is an operator of its own that this TensorRT does not have; export the model with standard operators",
        ),
        (
            "No importer registered",
            "this TensorRT does not know the operator; `edgeopt inspect` lists all that it would refuse",
        ),
        (
            "zero",
            "TensorRT takes symmetric quantization only: zero points must be 0; build with `edgeopt build --precision int8`",
        ),
        (
            "dynamic",
            "fix the dimension with --dim, or give its range with --range",
        ),
    ];
    known
        .into_iter()
        .find(|(part, _)| description.contains(part))
        .map(|(_, hint)| hint)
}

/// Why a build was stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Somebody asked for it.
    Asked,
    /// The system was about to run out of memory.
    MemoryLow {
        /// What was left.
        available: Bytes,
        /// What must be left.
        floor: Bytes,
    },
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Asked => f.write_str("it was cancelled"),
            Self::MemoryLow { available, floor } => write!(
                f,
                "only {available} of memory was left on this machine and at least {floor} must stay free; stop other \
                 programs, build on another machine of the same kind, or lower --optimization-level"
            ),
        }
    }
}

/// Why there is no engine.
#[derive(Debug, thiserror::Error)]
pub enum TensorRtError {
    /// The parser does not understand the model.
    #[error("TensorRT does not understand the model: {}", join(.0))]
    Parse(Vec<ParserProblem>),
    /// A layer needs more scratch memory than there is.
    #[error(
        "no implementation of {layer} fits into the {workspace} of scratch memory that the limit leaves; raise --memory{}",
        .detail
    )]
    Workspace {
        /// The layer, in TensorRT's words.
        layer: String,
        /// The limit of the workspace.
        workspace: Bytes,
        /// What the limit is made of, beginning with `; `, or nothing.
        detail: String,
    },
    /// The build was stopped.
    #[error("the build was stopped: {0}")]
    Stopped(Stop),
    /// Our allocator refused.
    #[error("the build needs {asked} of GPU memory beyond the {limit} it may take")]
    Memory {
        /// What was asked for in the allocation that was refused.
        asked: Bytes,
        /// The limit.
        limit: Bytes,
    },
    /// Anything else the library says.
    #[error("TensorRT {step}: {}", listed(.messages))]
    Library {
        /// What was being done: `refused the engine`.
        step: &'static str,
        /// What the library said, the last first.
        messages: Vec<String>,
    },
    /// The options ask for what this version cannot do.
    #[error("{0}")]
    Unsupported(String),
    /// A file.
    #[error("{path}: {problem}")]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
}

fn join(problems: &[ParserProblem]) -> String {
    let shown: Vec<String> = problems.iter().map(ToString::to_string).collect();
    shown.join("; ")
}

fn listed(messages: &[String]) -> String {
    if messages.is_empty() {
        return "it gave no reason".into();
    }
    messages.join("; ")
}

/// The layer in "could not find any implementation for node {…}" and the like.
pub(super) fn layer_without_tactic(messages: &[String]) -> Option<String> {
    messages.iter().find_map(|message| {
        let lower = message.to_lowercase();
        let about = lower.contains("no tactics to implement")
            || lower.contains("could not find any implementation")
            || lower.contains("workspace limit")
            || lower.contains("insufficient memory");
        about.then(|| {
            let start = lower.find("for node ").map(|at| at + "for node ".len());
            let name = start.and_then(|start| message.get(start..)).map(|rest| {
                rest.split(['.', ' ', '\n'])
                    .next()
                    .unwrap_or(rest)
                    .trim_matches(['"', '\'', '`'])
            });
            name.filter(|name| !name.is_empty())
                .map_or_else(|| "a layer".to_owned(), |name| format!("layer {name:?}"))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problems_name_node_and_operator_and_say_what_to_do() {
        let problem = ParserProblem {
            node: Some("head/nms".into()),
            op: Some("MyNms".into()),
            description: "Plugin not found, are the plugin name, version, and namespace correct?".into(),
        };
        let text = TensorRtError::Parse(vec![problem]).to_string();
        assert!(
            text.contains("\"head/nms\" (MyNms)") && text.contains("standard operators"),
            "{text}"
        );
    }

    #[test]
    fn layers_that_do_not_fit_are_found_in_what_the_library_says() {
        let said = |text: &str| layer_without_tactic(&[text.to_owned()]);
        assert_eq!(
            said("Error Code 10: Could not find any implementation for node conv1 + relu1.").as_deref(),
            Some("layer \"conv1\"")
        );
        assert_eq!(
            said("There are no tactics to implement the operation within workspace limit").as_deref(),
            Some("a layer")
        );
        assert_eq!(said("the engine was built"), None);
    }
}
