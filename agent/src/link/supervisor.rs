use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use tokio::sync::{Notify, watch};
use tokio::time;

use super::clock::{Environment, JumpDetector};
use super::quarantine::Quarantine;
use super::reason::DisconnectReason;
use super::session::{self, Ended};
use super::takeover::TakeoverDetector;
use super::view::{Alarm, LinkState};
use super::{Backoff, Inbound, LinkOptions, LinkView, Outbox, Watch};

/// How often the clock is looked at while waiting for it.
const LOOK_AT_CLOCK: Duration = Duration::from_millis(500);

/// The request to stop, as the link's thread sees it.
#[derive(Clone)]
pub(super) struct Stop(pub(super) watch::Receiver<bool>);

impl Stop {
    /// Whether the request has come, or the handle is gone, which is the same.
    pub(super) fn is_requested(&self) -> bool {
        *self.0.borrow() || self.0.has_changed().is_err()
    }

    /// Ends when the request has come.
    pub(super) async fn requested(&mut self) {
        // An error says that the sender is gone.
        let _gone = self.0.wait_for(|stop| *stop).await.is_err();
    }
}

/// What lives as long as the link.
pub(super) struct Context {
    pub(super) options: LinkOptions,
    pub(super) environment: Environment,
    pub(super) outbox: Box<dyn Outbox>,
    pub(super) inbound: SyncSender<Inbound>,
    pub(super) view: Watch<LinkView>,
    pub(super) nudge: Arc<Notify>,
    pub(super) stop: Stop,
    pub(super) quarantine: Quarantine,
}

impl Context {
    /// A connection goes on: alarms about connections that do not may end.
    pub(super) fn lasting(&mut self, connected_for: Duration) {
        self.quarantine.lasting(connected_for);
        let (stable, oversize) = (
            connected_for >= self.options.backoff.stable,
            self.quarantine.alarming(),
        );
        self.view.change(|view| {
            if stable {
                view.clear(&Alarm::Takeover {
                    client_id: String::new(),
                });
            }
            if !oversize {
                view.clear(&Alarm::OversizeInbound { size: 0, limit: 0 });
            }
        });
    }
}

/// Connects again and again until it is asked to stop.
pub(super) async fn run(mut context: Context) {
    let mut backoff = Backoff::new(context.options.backoff);
    let mut takeover = TakeoverDetector::new(context.options.backoff.stable);
    let mut offline_since = Instant::now();
    while !context.stop.is_requested() {
        let attempt = backoff.failures().saturating_add(1);
        context
            .view
            .change(|view| view.state = LinkState::Connecting { attempt });
        let plan = context.quarantine.plan();
        // From before the attempt: a clock that is set while it runs must not be missed.
        let clock = JumpDetector::new(context.environment.wall.now(), Instant::now());
        let Ended {
            reason,
            connected_for,
        } = session::run(&mut context, plan).await;
        if reason == DisconnectReason::Stopped {
            break;
        }
        let now = Instant::now();
        if connected_for.is_some() {
            offline_since = now;
        }
        context.quarantine.ended(&reason, now);
        if reason.is_planned() {
            continue;
        }
        raise_alarms(&context, &mut takeover, &reason, connected_for);
        let wait = backoff.after(connected_for, (context.environment.random)());
        tracing::warn!(?wait, "no connection to the broker: {reason}");
        context.view.change(|view| {
            view.counters.failures += 1;
            view.state = LinkState::Disconnected {
                reason: reason.clone(),
                since: offline_since,
                next_try: now + wait,
            };
        });
        pause(&context, wait, reason.awaits_clock().then_some(&clock)).await;
    }
    context.view.change(|view| view.state = LinkState::Stopped);
}

fn raise_alarms(
    context: &Context,
    takeover: &mut TakeoverDetector,
    reason: &DisconnectReason,
    connected_for: Option<Duration>,
) {
    let mut raised = Vec::new();
    if takeover.ended(reason, connected_for) {
        raised.push(Alarm::Takeover {
            client_id: context.options.client_id().to_owned(),
        });
    }
    let oversize = match reason {
        DisconnectReason::OversizeInbound { size, limit } => Some((*size, *limit)),
        _ => None,
    };
    if let Some((size, limit)) = oversize
        && context.quarantine.alarming()
    {
        raised.push(Alarm::OversizeInbound { size, limit });
    }
    context.view.change(|view| {
        view.counters.oversize_inbound += u64::from(oversize.is_some());
        for alarm in raised {
            tracing::error!("{alarm}");
            view.raise(alarm);
        }
    });
}

/// Waits, unless the link is to stop, or the clock jumps and that may help.
async fn pause(context: &Context, wait: Duration, clock: Option<&JumpDetector>) {
    let deadline = time::Instant::now() + wait;
    let mut stop = context.stop.clone();
    loop {
        if clock.is_some_and(|clock| clock.jumped(context.environment.wall.now(), Instant::now())) {
            return;
        }
        let step = match clock {
            Some(_) => deadline.min(time::Instant::now() + LOOK_AT_CLOCK),
            None => deadline,
        };
        tokio::select! {
            () = stop.requested() => return,
            () = time::sleep_until(step) => {}
        }
        if time::Instant::now() >= deadline {
            return;
        }
    }
}
