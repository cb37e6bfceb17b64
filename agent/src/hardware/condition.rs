//! What a rule asks of a result: `person > 0.8`, `text contains "STOP" and /confidence >= 0.9`.

use std::fmt;
use std::str::FromStr;

use serde::Deserialize;
use serde_json::Value;

/// Comparisons joined by `and` and `or`; `and` binds tighter.
///
/// A comparison is `<operand> <operator> <value>`. Operands are a label (`person`, or `"traffic light"` in quotes), whose
/// best score counts, 0 where the result does not list it; `text`, the text that was read; and a JSON pointer into the
/// prediction (`/outputs/0/values/0`). Operators are `>`, `>=`, `<`, `<=`, `==`, `!=` with numbers, and `==`, `!=`,
/// `contains` with texts in quotes.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(try_from = "String")]
pub struct Condition {
    text: String,
    /// One of these must hold as a whole.
    alternatives: Vec<Vec<Comparison>>,
}

#[derive(Clone, Debug, PartialEq)]
struct Comparison {
    operand: Operand,
    test: Test,
}

#[derive(Clone, Debug, PartialEq)]
enum Operand {
    Label(String),
    Text,
    Pointer(String),
}

#[derive(Clone, Debug, PartialEq)]
enum Test {
    Number(Operator, f64),
    Is(String),
    IsNot(String),
    Contains(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operator {
    Greater,
    GreaterEqual,
    Less,
    LessEqual,
    Equal,
    NotEqual,
}

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

/// A prediction that has nothing of what a condition asks for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{condition}` does not fit the slot's results: {problem}")]
pub struct Unanswerable {
    /// The condition.
    pub condition: String,
    /// What is missing.
    pub problem: String,
}

impl Condition {
    /// Whether a prediction (the field `prediction` of a result) meets it.
    ///
    /// # Errors
    /// When the prediction is of another kind: it has no labels, no text, or nothing where the pointer points.
    pub fn holds(&self, prediction: &Value) -> Result<bool, Unanswerable> {
        let mut any = false;
        for all in &self.alternatives {
            let mut holds = true;
            for comparison in all {
                // Every part is looked at, so that a misfit shows at the first result and not when it matters.
                holds &= comparison.holds(prediction).map_err(|problem| Unanswerable {
                    condition: self.text.clone(),
                    problem,
                })?;
            }
            any |= holds;
        }
        Ok(any)
    }
}

impl Comparison {
    fn holds(&self, prediction: &Value) -> Result<bool, String> {
        let found = match &self.operand {
            Operand::Label(label) => Value::from(best_score(prediction, label)?),
            Operand::Text => prediction
                .get("text")
                .cloned()
                .ok_or("there is no text in them")?,
            Operand::Pointer(pointer) => prediction
                .pointer(pointer)
                .cloned()
                .ok_or_else(|| format!("there is nothing at {pointer}"))?,
        };
        match &self.test {
            Test::Number(operator, limit) => match found.as_f64() {
                Some(number) => Ok(operator.holds(number, *limit)),
                None => Err(format!("{found} is not a number")),
            },
            Test::Is(text) => string(&found).map(|found| found == text),
            Test::IsNot(text) => string(&found).map(|found| found != text),
            Test::Contains(text) => string(&found).map(|found| found.contains(text)),
        }
    }
}

fn string(value: &Value) -> Result<&str, String> {
    value.as_str().ok_or_else(|| format!("{value} is not a text"))
}

/// The best score of a label among the entries of the prediction's lists (classes or detections); 0 if none has it.
fn best_score(prediction: &Value, label: &str) -> Result<f64, String> {
    let lists = prediction.as_object().into_iter().flat_map(|fields| {
        fields
            .values()
            .filter_map(Value::as_array)
            .filter(|list| list.is_empty() || list.iter().any(|entry| entry.get("label").is_some()))
    });
    let mut seen = false;
    let mut best = 0.0;
    for entry in lists.inspect(|_| seen = true).flatten() {
        if entry.get("label").and_then(Value::as_str) == Some(label) {
            let score = entry
                .get("score")
                .and_then(Value::as_f64)
                .ok_or_else(|| format!("{label} has no score"))?;
            best = f64::max(best, score);
        }
    }
    match seen {
        true => Ok(best),
        false => Err("they name no labels (does the bundle carry any?)".into()),
    }
}

impl Operator {
    fn holds(self, left: f64, right: f64) -> bool {
        match self {
            Self::Greater => left > right,
            Self::GreaterEqual => left >= right,
            Self::Less => left < right,
            Self::LessEqual => left <= right,
            Self::Equal => left == right,
            Self::NotEqual => left != right,
        }
    }
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

impl TryFrom<String> for Condition {
    type Error = InvalidCondition;
    fn try_from(text: String) -> Result<Self, InvalidCondition> {
        text.parse()
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
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
    use serde_json::json;

    use super::*;

    fn holds(condition: &str, prediction: &Value) -> Result<bool, Unanswerable> {
        condition.parse::<Condition>().unwrap().holds(prediction)
    }

    #[test]
    fn labels_texts_and_pointers_are_compared() {
        let classes = json!({"kind": "classes", "classes": [
            {"index": 3, "label": "person", "score": 0.875}, {"index": 1, "label": "traffic light", "score": 0.0625},
        ]});
        let objects = json!({"kind": "detections", "detections": [
            {"label": "person", "score": 0.5}, {"label": "person", "score": 0.9375}, {"index": 4, "score": 0.99},
        ]});
        let text = json!({"kind": "text", "text": "STOP 12", "confidence": 0.75});
        let raw = json!({"kind": "raw", "outputs": [{"name": "error", "values": [2.5, -1.0]}]});
        for (condition, prediction, expected) in [
            ("person > 0.8", &classes, true),
            ("person>0.875", &classes, false),
            ("person >= 0.875", &classes, true),
            ("\"traffic light\" <= 0.1", &classes, true),
            ("dog > 0", &classes, false),
            ("dog < 0.1", &classes, true),
            ("dog == 0", &classes, true),
            ("person > 0.9", &objects, true),
            ("person > 0.8 and dog > 0.5", &classes, false),
            ("person > 0.8 and dog > 0.5 or person != 0", &classes, true),
            ("person > 0.8 or dog > 0.5", &classes, true),
            ("text contains \"STOP\"", &text, true),
            ("text == \"STOP\"", &text, false),
            ("text != \"STOP\" and /confidence > 0.7", &text, true),
            ("/outputs/0/values/0 > 2.4", &raw, true),
            ("/outputs/0/values/1 > -1.5e0", &raw, true),
            ("/outputs/0/name == \"error\"", &raw, true),
        ] {
            assert_eq!(holds(condition, prediction), Ok(expected), "{condition}");
        }
        // A detector that found nothing gives an empty list, not another kind of result.
        assert_eq!(holds("person > 0.5", &json!({"detections": []})), Ok(false));
    }

    #[test]
    fn a_result_of_another_kind_is_said_to_be_one() {
        let raw = json!({"kind": "raw", "outputs": [{"name": "scores", "values": [null]}]});
        for (condition, expected) in [
            ("person > 0.8", "no labels"),
            ("text == \"a\"", "no text"),
            ("/outputs/1 > 0", "nothing at /outputs/1"),
            ("/outputs/0/values/0 > 0", "null is not a number"),
            ("/outputs/0/name > 0", "is not a number"),
            ("/outputs/0/values/0 == \"a\"", "is not a text"),
        ] {
            let error = holds(condition, &raw).unwrap_err().to_string();
            assert!(
                error.contains(expected) && error.contains(condition),
                "{condition}: {error}"
            );
        }
        // Found even behind an alternative that already decides.
        let text = json!({"text": "a"});
        assert!(holds("text == \"a\" or person > 0.5", &text).is_err());
    }

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
