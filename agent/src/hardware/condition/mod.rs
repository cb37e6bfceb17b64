//! What a rule asks of a result: `person > 0.8`, `text contains "STOP" and /confidence >= 0.9`.

use std::fmt;

use serde::Deserialize;
use serde_json::Value;

mod parse;

pub use parse::InvalidCondition;

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
}
