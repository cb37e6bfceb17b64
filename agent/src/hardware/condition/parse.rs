use std::str::FromStr;

use super::{Comparison, Condition, Operand, Operator, Test};

/// Why a text is not a [`Condition`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "condition {text:?}: {problem}; write for example `person > 0.8`, `text contains \"STOP\"` or \
     `/outputs/0/values/0 >= 2.5 and door < 0.5`"
)]
pub struct InvalidCondition {
    text: String,
    problem: String,
}

impl FromStr for Condition {
    type Err = InvalidCondition;
    fn from_str(text: &str) -> Result<Self, InvalidCondition> {
        let parse = || -> Result<Vec<Vec<Comparison>>, String> {
            let tokens = tokens(text)?;
            if tokens.is_empty() {
                return Err("it is empty".into());
            }
            tokens
                .split(|token| *token == Token::Word("or".into()))
                .map(|all| {
                    all.split(|token| *token == Token::Word("and".into()))
                        .map(comparison)
                        .collect()
                })
                .collect()
        };
        match parse() {
            Ok(alternatives) => Ok(Self {
                text: text.to_owned(),
                alternatives,
            }),
            Err(problem) => Err(InvalidCondition {
                text: text.to_owned(),
                problem,
            }),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
enum Token {
    Word(String),
    Quoted(String),
    Sign(&'static str),
}

/// The longer ones first: `>=` is not `>` and `=`.
const SIGNS: [&str; 6] = [">=", "<=", "==", "!=", ">", "<"];

fn tokens(text: &str) -> Result<Vec<Token>, String> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        if let Some(sign) = SIGNS.iter().find(|sign| rest.starts_with(**sign)) {
            tokens.push(Token::Sign(sign));
            rest = &rest[sign.len()..];
        } else if let Some(quoted) = rest.strip_prefix('"') {
            let end = quoted.find('"').ok_or("a quote is not closed")?;
            tokens.push(Token::Quoted(quoted[..end].to_owned()));
            rest = &quoted[end + 1..];
        } else {
            let end = rest
                .find(|c: char| c.is_whitespace() || "<>=!\"".contains(c))
                .unwrap_or(rest.len());
            if end == 0 {
                return Err(format!("`{}` is no operator", &rest[..1]));
            }
            tokens.push(Token::Word(rest[..end].to_owned()));
            rest = &rest[end..];
        }
        rest = rest.trim_start();
    }
    Ok(tokens)
}

fn comparison(tokens: &[Token]) -> Result<Comparison, String> {
    let [operand, operator, value] = tokens else {
        return Err(match tokens.len() {
            0 => "a comparison is missing beside `and` or `or`".into(),
            _ => "a comparison has three parts, and a label of several words needs quotes".into(),
        });
    };
    let operand = match operand {
        Token::Quoted(label) => Operand::Label(label.clone()),
        Token::Word(word) if word == "text" => Operand::Text,
        Token::Word(word) if word.starts_with('/') => Operand::Pointer(word.clone()),
        Token::Word(word) => Operand::Label(word.clone()),
        Token::Sign(sign) => return Err(format!("`{sign}` compares nothing")),
    };
    let test = match (operator, value) {
        (Token::Sign(sign), Token::Word(number)) => {
            let limit: f64 = number
                .parse()
                .map_err(|_| format!("`{number}` is not a number"))?;
            if !limit.is_finite() {
                return Err(format!("`{number}` is not a finite number"));
            }
            Test::Number(operator_of(sign), limit)
        }
        (Token::Sign("=="), Token::Quoted(text)) => Test::Is(text.clone()),
        (Token::Sign("!="), Token::Quoted(text)) => Test::IsNot(text.clone()),
        (Token::Sign(sign), Token::Quoted(_)) => return Err(format!("`{sign}` compares numbers only")),
        (Token::Word(word), Token::Quoted(text)) if word == "contains" => Test::Contains(text.clone()),
        (Token::Word(word), _) if word == "contains" => {
            return Err("`contains` needs a text in quotes".into());
        }
        _ => return Err("the operator is missing".into()),
    };
    match (&operand, &test) {
        (Operand::Label(_), Test::Number(..)) | (Operand::Pointer(_), _) => {}
        (Operand::Label(label), _) => return Err(format!("the score of `{label}` is a number, not a text")),
        (Operand::Text, Test::Number(..)) => return Err("`text` is compared with a text in quotes".into()),
        (Operand::Text, _) => {}
    }
    Ok(Comparison { operand, test })
}

fn operator_of(sign: &str) -> Operator {
    match sign {
        ">" => Operator::Greater,
        ">=" => Operator::GreaterEqual,
        "<" => Operator::Less,
        "<=" => Operator::LessEqual,
        "==" => Operator::Equal,
        _ => Operator::NotEqual,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_are_explained() {
        for (condition, expected) in [
            ("", "empty"),
            ("person", "three parts"),
            ("traffic light > 0.5", "quotes"),
            ("person > high", "`high` is not a number"),
            ("person > inf", "finite"),
            ("person = 0.5", "no operator"),
            ("\"person > 0.5", "not closed"),
            ("person > 0.5 and", "missing beside"),
            ("person == \"yes\"", "is a number, not a text"),
            ("text > 3", "in quotes"),
            ("text > \"a\"", "numbers only"),
            ("text contains 3", "in quotes"),
            ("> 0.5 3", "compares nothing"),
            ("person above 0.5", "operator is missing"),
        ] {
            let error = condition.parse::<Condition>().unwrap_err().to_string();
            assert!(error.contains(expected), "{condition}: {error}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_the_parser_panic(text in "[a-z\"<>=!/ 0-9.é]{0,24}") {
            let _ = text.parse::<Condition>();
        }
    }
}
