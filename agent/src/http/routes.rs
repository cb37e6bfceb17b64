use std::sync::Arc;

use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, ALLOW, CONTENT_TYPE, HeaderMap, RETRY_AFTER};
use hyper::{Method, Request, Response, StatusCode};
use serde::Serialize;
use tokio::sync::oneshot;

use super::metrics;
use crate::config::Input;
use crate::daemon::overview::Observer;
use crate::daemon::slots::Slots;
use crate::protocol::{Encoding, Prediction, ResultMessage, SlotName};
use crate::serve::ServeError;

/// The largest input.
const LARGEST: usize = 64 << 20;

/// Media type of CBOR.
const CBOR: &str = "application/cbor";

type Answer = Response<Full<Bytes>>;

/// What answers requests.
pub(super) struct Routes {
    pub(super) slots: Arc<Slots>,
    pub(super) observer: Arc<Observer>,
}

impl Routes {
    pub(super) async fn answer(&self, request: Request<Incoming>) -> Answer {
        let path = request.uri().path().to_owned();
        let levels: Vec<&str> = path.trim_start_matches('/').split('/').collect();
        let method = request.method().clone();
        match (levels.as_slice(), &method) {
            (["healthz"], &Method::GET | &Method::HEAD) => self.health(),
            (["metrics"], &Method::GET) => match metrics::render(&self.observer) {
                Ok(text) => text_answer(metrics::CONTENT, text),
                Err(error) => problem(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
            },
            (["v1", "status"], &Method::GET) => json(StatusCode::OK, &self.observer.look()),
            (["v1", "slots", slot, "predict"], &Method::POST) => self.predict(slot, request).await,
            (["healthz" | "metrics"] | ["v1", "status"], _) => not_allowed("GET"),
            (["v1", "slots", _, "predict"], _) => not_allowed("POST"),
            _ => problem(
                StatusCode::NOT_FOUND,
                &format!(
                    "{path}: there are /v1/slots/<slot>/predict (POST), /v1/status, /healthz and /metrics"
                ),
            ),
        }
    }

    fn health(&self) -> Answer {
        #[derive(Serialize)]
        struct Health {
            healthy: bool,
            ready: bool,
            hanging: Vec<String>,
        }
        let overview = self.observer.look();
        let healthy = overview.ready && overview.hanging.is_empty();
        let status = if healthy {
            StatusCode::OK
        } else {
            StatusCode::SERVICE_UNAVAILABLE
        };
        let health = Health {
            healthy,
            ready: overview.ready,
            hanging: overview.hanging,
        };
        json(status, &health)
    }

    async fn predict(&self, slot: &str, request: Request<Incoming>) -> Answer {
        let found = slot
            .parse::<SlotName>()
            .ok()
            .and_then(|name| self.slots.get(&name));
        let Some(found) = found else {
            return problem(
                StatusCode::NOT_FOUND,
                &format!("this device has no slot {slot:?}"),
            );
        };
        if !found
            .settings
            .inputs
            .iter()
            .any(|input| matches!(input, Input::Http {}))
        {
            return problem(
                StatusCode::FORBIDDEN,
                &format!("slot {slot} takes no requests; add {{ kind = \"http\" }} to its inputs"),
            );
        }
        // After a start, inputs that the broker has kept wait for the model; who asks here can come again.
        if !found.keeper.settled() {
            return refusal(&ServeError::NoModel);
        }
        let encoding = accepted(request.headers());
        let body = match Limited::new(request.into_body(), LARGEST).collect().await {
            Ok(body) => body.to_bytes(),
            Err(error) if error.is::<LengthLimitError>() => {
                return problem(
                    StatusCode::PAYLOAD_TOO_LARGE,
                    &format!("an input has at most {LARGEST} bytes"),
                );
            }
            Err(error) => return problem(StatusCode::BAD_REQUEST, &error.to_string()),
        };
        let (reply, answered) = oneshot::channel();
        found.submit(
            "the request's body".to_owned(),
            "http".to_owned(),
            body.to_vec(),
            move |result| {
                // The client may have gone.
                drop(reply.send(result));
            },
        );
        match answered.await {
            Ok(Ok((message, _))) => result(&message, encoding),
            Ok(Err(error)) => refusal(&error),
            Err(_) => problem(StatusCode::SERVICE_UNAVAILABLE, "the daemon stops"),
        }
    }
}

fn refusal(error: &ServeError) -> Answer {
    let status = match error {
        ServeError::QueueFull => StatusCode::TOO_MANY_REQUESTS,
        ServeError::NoModel | ServeError::Paused => StatusCode::SERVICE_UNAVAILABLE,
        ServeError::Input(_) => StatusCode::UNPROCESSABLE_ENTITY,
        // Only a camera's inputs are withdrawn.
        ServeError::Model(_) | ServeError::Withdrawn => StatusCode::INTERNAL_SERVER_ERROR,
    };
    let mut answer = problem(status, &error.to_string());
    if matches!(error, ServeError::QueueFull | ServeError::NoModel) {
        answer.headers_mut().insert(RETRY_AFTER, 1.into());
    }
    answer
}

/// CBOR for who names it; JSON for all others. Weights (`q`) are not compared: who can read CBOR and names it has it.
fn accepted(headers: &HeaderMap) -> Encoding {
    let texts = headers
        .get_all(ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok());
    let mut ranges = texts.flat_map(|text| text.split(','));
    let names_cbor = ranges.any(|range| {
        let name = range.split(';').next().unwrap_or_default();
        name.trim().eq_ignore_ascii_case(CBOR)
    });
    if names_cbor {
        Encoding::Cbor
    } else {
        Encoding::Json
    }
}

fn result(message: &ResultMessage<Prediction>, encoding: Encoding) -> Answer {
    let written = match encoding {
        Encoding::Json => return json(StatusCode::OK, message),
        Encoding::Cbor => message.encode(encoding),
    };
    match written {
        Ok(bytes) => answer_with(CBOR, bytes),
        Err(error) => problem(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    }
}

fn text_answer(content: &'static str, text: String) -> Answer {
    answer_with(content, text.into_bytes())
}

fn answer_with(content: &'static str, bytes: Vec<u8>) -> Answer {
    let mut answer = Response::new(Full::new(Bytes::from(bytes)));
    answer
        .headers_mut()
        .insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static(content));
    answer
}

fn json(status: StatusCode, value: &impl Serialize) -> Answer {
    match serde_json::to_string(value) {
        Ok(text) => {
            let mut answer = text_answer("application/json", text + "\n");
            *answer.status_mut() = status;
            answer
        }
        Err(error) => problem(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    }
}

fn problem(status: StatusCode, words: &str) -> Answer {
    let body = serde_json::json!({ "error": words });
    let mut answer = text_answer("application/json", format!("{body}\n"));
    *answer.status_mut() = status;
    answer
}

fn not_allowed(method: &'static str) -> Answer {
    let mut answer = problem(
        StatusCode::METHOD_NOT_ALLOWED,
        &format!("only {method} is possible here"),
    );
    answer
        .headers_mut()
        .insert(ALLOW, hyper::header::HeaderValue::from_static(method));
    answer
}
