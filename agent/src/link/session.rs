use std::sync::Arc;
use std::time::{Duration, Instant};

use rumqttc::{AsyncClient, Event, EventLoop, Packet, QoS, SubAck, SubscribeFilter, SubscribeReasonCode};
use tokio::time;

use super::OutboxError;
use super::poller::{Doorstep, Polled, Poller};
use super::quarantine::Plan;
use super::reason::DisconnectReason;
use super::supervisor::Context;
use super::view::{Alarm, LinkState};
use super::window::{Ticket, Uncorrelated, Window};

/// Requests that may wait between us and the client: more than the widest window and the few of our own.
const REQUESTS: usize = 512;

/// How often waiting acknowledgements and a failing outbox are looked at.
const TICK: Duration = Duration::from_millis(500);

/// How a connection, or the attempt at one, ended.
pub(super) struct Ended {
    pub(super) reason: DisconnectReason,
    /// How long it lasted; `None` if it did not come to one.
    pub(super) connected_for: Option<Duration>,
}

/// One connection from its attempt to its end. Nothing of the client survives it.
pub(super) async fn run(context: &mut Context, plan: Plan) -> Ended {
    let clean = plan != Plan::Usual;
    let mqtt = match context.options.client(clean, &context.environment.wall) {
        Ok(mqtt) => mqtt,
        Err(problem) => {
            return Ended {
                reason: DisconnectReason::Configuration(problem),
                connected_for: None,
            };
        }
    };
    let (client, mut event_loop) = AsyncClient::new(mqtt, REQUESTS);
    let network = &mut event_loop.network_options;
    network.set_connection_timeout(context.options.network_timeout.as_secs().max(1));
    // Small packets go out at once: with Nagle's algorithm an acknowledgement that is due holds each back for 40 ms.
    network.set_tcp_nodelay(true);
    let window = Window::new(context.options.width());
    let alarms = context.view.get().alarms;
    let outbox_fails = alarms.iter().any(|alarm| matches!(alarm, Alarm::Outbox(_)));
    let mut session = Session {
        context,
        client,
        window,
        plan,
        connected: None,
        after: None,
        stopping: false,
        outbox_fails,
    };
    let reason = session.drive(event_loop).await;
    Ended {
        reason,
        connected_for: session.connected.map(|since| since.elapsed()),
    }
}

struct Session<'a> {
    context: &'a mut Context,
    client: AsyncClient,
    window: Window,
    plan: Plan,
    connected: Option<Instant>,
    /// The last message taken from the outbox.
    after: Option<u64>,
    stopping: bool,
    outbox_fails: bool,
}

impl Session<'_> {
    async fn drive(&mut self, event_loop: EventLoop) -> DisconnectReason {
        let doorstep = Doorstep {
            inbound: self.context.inbound.clone(),
            stop: self.context.stop.clone(),
            stall_timeout: self.context.options.stall_timeout,
            network_timeout: self.context.options.network_timeout,
            packet_limit: self.context.options.packet_limit().bytes(),
            wall: Arc::clone(&self.context.environment.wall),
        };
        let mut poller = Poller::start(event_loop, doorstep);
        let mut tick = time::interval(TICK);
        tick.set_missed_tick_behavior(time::MissedTickBehavior::Delay);
        let nudge = self.context.nudge.clone();
        let mut stop = self.context.stop.clone();
        loop {
            let step = tokio::select! {
                polled = poller.next() => match polled {
                    Polled::Event(event) => self.on_event(&event),
                    Polled::Received => {
                        self.context.view.change(|view| view.counters.received += 1);
                        Ok(())
                    }
                    Polled::Ended(reason) => Err(reason.into()),
                },
                () = nudge.notified() => self.pump(),
                _ = tick.tick() => self.on_tick(),
                () = stop.requested(), if !self.stopping => self.begin_stop(),
            };
            let reason = match step {
                Ok(()) => continue,
                // A connection that breaks while we say goodbye is over as well.
                Err(_) if self.stopping => DisconnectReason::Stopped,
                Err(Break::Because(reason)) => reason,
                Err(Break::ClientGone) => poller.reason().await,
            };
            return reason;
        }
    }

    fn on_event(&mut self, event: &Event) -> Step {
        match event {
            Event::Incoming(Packet::ConnAck(accepted)) => self.on_connected(accepted.session_present),
            Event::Incoming(Packet::PubAck(acknowledgement)) => self.on_acknowledged(acknowledgement.pkid),
            Event::Incoming(Packet::SubAck(answer)) => {
                self.on_subscribed(answer);
                Ok(())
            }
            Event::Outgoing(rumqttc::Outgoing::Publish(id)) if *id != 0 => Ok(self.window.sent(*id)?),
            // The client met a packet id whose acknowledgement is open.
            Event::Outgoing(rumqttc::Outgoing::AwaitAck(id)) => Err(Uncorrelated(*id).into()),
            Event::Outgoing(rumqttc::Outgoing::Disconnect) => Err(DisconnectReason::Stopped.into()),
            Event::Incoming(_) | Event::Outgoing(_) => Ok(()),
        }
    }

    fn on_connected(&mut self, session_present: bool) -> Step {
        let now = Instant::now();
        self.connected = Some(now);
        if self.plan == Plan::Purge {
            return Err(DisconnectReason::Purged.into());
        }
        self.context.view.change(|view| {
            view.state = LinkState::Connected {
                since: now,
                session_present,
                subscribed: false,
            };
            view.counters.connects += 1;
        });
        tracing::info!(session_present, "connected to the broker");
        if self.plan == Plan::Usual && !self.context.options.filters.is_empty() {
            let filters = self.context.options.filters.iter();
            let filters = filters.map(|filter| SubscribeFilter::new(filter.clone(), QoS::AtLeastOnce));
            self.client.try_subscribe_many(filters).map_err(client_gone)?;
        }
        self.publish_status(true)?;
        self.pump()
    }

    fn publish_status(&mut self, online: bool) -> Step {
        let (topic, status) = (
            self.context.options.status_topic(),
            self.context.options.status(online),
        );
        self.client
            .try_publish(topic, QoS::AtLeastOnce, true, status)
            .map_err(client_gone)?;
        self.window.submitted(Ticket::Status, Instant::now());
        Ok(())
    }

    fn on_subscribed(&mut self, answer: &SubAck) {
        let filters = self.context.options.filters.iter();
        let refused: Vec<String> = filters
            .zip(&answer.return_codes)
            .filter(|(_, code)| **code == SubscribeReasonCode::Failure)
            .map(|(filter, _)| filter.clone())
            .collect();
        let any = !refused.is_empty();
        let alarm = Alarm::SubscriptionRefused { filters: refused };
        if any {
            tracing::error!("{alarm}");
        }
        self.context.view.change(|view| {
            if let LinkState::Connected { subscribed, .. } = &mut view.state {
                *subscribed = true;
            }
            if any {
                view.raise(alarm)
            } else {
                view.clear(&alarm)
            }
        });
    }

    fn on_acknowledged(&mut self, id: u16) -> Step {
        let ticket = self.window.acknowledged(id)?;
        if let Ticket::Record(sequence) = ticket {
            let noted = self.context.outbox.acknowledged(sequence);
            self.report_outbox(noted);
            self.context.view.change(|view| view.counters.acknowledged += 1);
        }
        if self.stopping {
            self.say_goodbye_when_done()
        } else {
            self.pump()
        }
    }

    /// Fills the window from the outbox.
    fn pump(&mut self) -> Step {
        if self.connected.is_none() || self.stopping {
            return Ok(());
        }
        loop {
            let room = self.window.room();
            if room == 0 {
                return Ok(());
            }
            let batch = match self.context.outbox.next(self.after, room) {
                Ok(batch) => {
                    self.report_outbox(Ok(()));
                    batch
                }
                Err(error) => {
                    self.report_outbox(Err(error));
                    return Ok(()); // the next tick tries again
                }
            };
            if batch.is_empty() {
                return Ok(());
            }
            for record in batch.into_iter().take(room) {
                self.after = Some(record.sequence);
                let limit = self.context.options.packet_limit();
                if let Err(refusal) = limit.check(&record.topic, record.payload.len()) {
                    tracing::error!(sequence = record.sequence, "message given up: {refusal}");
                    let noted = self.context.outbox.refused(record.sequence, &refusal);
                    self.report_outbox(noted);
                    self.context.view.change(|view| view.counters.refused += 1);
                    continue;
                }
                self.client
                    .try_publish(record.topic, QoS::AtLeastOnce, record.retain, record.payload)
                    .map_err(client_gone)?;
                self.window
                    .submitted(Ticket::Record(record.sequence), Instant::now());
                self.context.view.change(|view| view.counters.published += 1);
            }
        }
    }

    fn report_outbox(&mut self, result: Result<(), OutboxError>) {
        match result {
            Err(error) => {
                tracing::error!("{error}");
                self.outbox_fails = true;
                self.context.view.change(|view| view.raise(Alarm::Outbox(error)));
            }
            Ok(()) if self.outbox_fails => {
                self.outbox_fails = false;
                let kind = Alarm::Outbox(OutboxError(String::new()));
                self.context.view.change(|view| view.clear(&kind));
            }
            Ok(()) => {}
        }
    }

    fn on_tick(&mut self) -> Step {
        let Some(connected) = self.connected else {
            return Ok(());
        };
        let limit = self.context.options.ack_timeout;
        if self
            .window
            .oldest_since()
            .is_some_and(|since| since.elapsed() > limit)
        {
            return Err(DisconnectReason::Unacknowledged(limit.as_secs()).into());
        }
        if let Plan::Deaf { until } = self.plan
            && Instant::now() >= until
        {
            return Err(DisconnectReason::HoldOver.into());
        }
        self.context.lasting(connected.elapsed());
        self.pump()
    }

    fn begin_stop(&mut self) -> Step {
        self.stopping = true;
        if self.connected.is_none() {
            return Err(DisconnectReason::Stopped.into());
        }
        self.publish_status(false)
    }

    /// Once everything published is acknowledged, the offline status included, the broker may know that we leave on
    /// purpose. Without that it would publish the will, which says the same.
    fn say_goodbye_when_done(&self) -> Step {
        match self.window.is_empty() {
            true => self.client.try_disconnect().map_err(client_gone),
            false => Ok(()),
        }
    }
}

/// Why a session cannot go on.
enum Break {
    /// For this reason.
    Because(DisconnectReason),
    /// The client takes nothing. Its queue is larger than all that can be under way, so it has ended, and the poller knows
    /// why.
    ClientGone,
}

impl From<DisconnectReason> for Break {
    fn from(reason: DisconnectReason) -> Self {
        Self::Because(reason)
    }
}

impl From<Uncorrelated> for Break {
    fn from(error: Uncorrelated) -> Self {
        Self::Because(DisconnectReason::Protocol(error.to_string()))
    }
}

type Step = Result<(), Break>;

/// The error itself would only show the request, with its whole payload.
fn client_gone(_: rumqttc::ClientError) -> Break {
    Break::ClientGone
}
