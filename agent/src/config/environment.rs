use toml::{Table, Value};

/// What the name of an environment variable that overrides a field begins with. The rest is the field's path with
/// `__` between levels: `EDGEOPT_AGENT__BROKER__HOST` is `host` in `[broker]`. Names become lower case, so that slots
/// with capitals in their name cannot be reached this way.
pub const PREFIX: &str = "EDGEOPT_AGENT__";

/// A variable that cannot be applied: its name and what is wrong.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct BadOverride {
    pub(super) variable: String,
    pub(super) problem: String,
}

/// Writes the variables that start with [`PREFIX`] into `table` and returns their names, sorted.
///
/// A value that reads as a number, a truth value, a quoted text or a list is that; anything else is text. Text that
/// looks like a number is written with quotes: `'"42"'`.
pub(super) fn apply(
    table: &mut Table,
    variables: impl IntoIterator<Item = (String, String)>,
) -> Result<Vec<String>, BadOverride> {
    let mut found: Vec<(String, String)> = variables
        .into_iter()
        .filter(|(name, _)| name.starts_with(PREFIX))
        .collect();
    found.sort();
    for (variable, value) in &found {
        let bad = |problem: String| BadOverride {
            variable: variable.clone(),
            problem,
        };
        let path = variable.trim_start_matches(PREFIX).to_lowercase();
        let mut levels: Vec<&str> = path.split("__").collect();
        if levels.iter().any(|level| level.is_empty()) {
            return Err(bad(
                "has an empty level; write for example EDGEOPT_AGENT__BROKER__HOST".into(),
            ));
        }
        let Some(field) = levels.pop() else { continue };
        let mut place = &mut *table;
        for level in levels {
            place = place
                .entry(level)
                .or_insert_with(|| Value::Table(Table::new()))
                .as_table_mut()
                .ok_or_else(|| {
                    bad(format!(
                        "goes through `{level}`, which is a value and not a table"
                    ))
                })?;
        }
        place.insert(field.to_owned(), interpret(value));
    }
    Ok(found.into_iter().map(|(name, _)| name).collect())
}

fn interpret(text: &str) -> Value {
    let parsed = format!("value = {text}")
        .parse::<Table>()
        .ok()
        .and_then(|mut table| match table.len() {
            1 => table.remove("value"),
            _ => None, // a line break smuggled in a second field
        });
    match parsed {
        Some(value @ (Value::Integer(_) | Value::Boolean(_) | Value::String(_) | Value::Array(_))) => value,
        _ => Value::String(text.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn applied(start: &str, variables: &[(&str, &str)]) -> Result<Table, BadOverride> {
        let mut table = start.parse().unwrap();
        apply(
            &mut table,
            variables
                .iter()
                .map(|(name, value)| ((*name).into(), (*value).into())),
        )?;
        Ok(table)
    }

    #[test]
    fn values_take_the_type_they_look_like() {
        let table = applied(
            "[broker]\nhost = 'a'",
            &[
                ("EDGEOPT_AGENT__BROKER__HOST", "broker.example"),
                ("EDGEOPT_AGENT__BROKER__PORT", "1884"),
                ("EDGEOPT_AGENT__BROKER__USERNAME", "\"42\""),
                ("EDGEOPT_AGENT__TRUST__REQUIRE_SIGNATURE", "false"),
                ("EDGEOPT_AGENT__BROKER__TLS__ALPN", "['mqtt']"),
                ("EDGEOPT_AGENT__DEVICE", "1\nport = 2"),
                ("PATH", "/bin"),
            ],
        );
        let expected: Table = "device = \"1\\nport = 2\"\n[broker]\nhost = 'broker.example'\nport = 1884\n\
            username = '42'\ntls = { alpn = ['mqtt'] }\n[trust]\nrequire_signature = false"
            .parse()
            .unwrap();
        assert_eq!(table, Ok(expected));
    }

    #[test]
    fn a_path_through_a_value_or_with_an_empty_level_is_refused() {
        let through = applied("device = 'a'", &[("EDGEOPT_AGENT__DEVICE__X", "1")]).unwrap_err();
        assert!(through.problem.contains("`device`"), "{through:?}");
        let empty = applied("", &[("EDGEOPT_AGENT__BROKER____HOST", "1")]).unwrap_err();
        assert_eq!(empty.variable, "EDGEOPT_AGENT__BROKER____HOST");
    }
}
