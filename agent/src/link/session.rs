use std::time::{Duration, Instant};

use rumqttc::{AsyncClient, ConnectionError, Event, EventLoop, Packet, Publish, QoS};
use rumqttc::{SubAck, SubscribeFilter, SubscribeReasonCode};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time;

use super::quarantine::Plan;
use super::reason::{self, DisconnectReason};
use super::supervisor::Context;
use super::view::{Alarm, LinkState};
use super::window::{Ticket, Window};
use super::{Inbound, OutboxError};

/// Requests that wait between us and the client: a full window, acknowledgements of one batch of inbound packets (the
/// client reads ten at a time), and the few of our own.
const REQUESTS: usize = 512;

/// How often waiting acknowledgements and a failing outbox are looked at.
const TICK: Duration = Duration::from_millis(500);

/// How often a full queue of the daemon is tried again.
const RETRY_INBOUND: Duration = Duration::from_millis(10);

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
    event_loop
        .network_options
        .set_connection_timeout(context.options.network_timeout.as_secs().max(1));
    let window = Window::new(context.options.width());
    let mut session = Session {
        context,
        client,
        window,
        plan,
        connected: None,
        after: None,
        stopping: false,
    };
    let reason = session.drive(event_loop).await;
    Ended {
        reason,
        connected_for: session.connected.map(|since| since.elapsed()),
    }
}

/// Ends the task with the client when the session ends, however that comes.
struct Poller(JoinHandle<()>);

impl Drop for Poller {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Polls the client until it fails. In a task of its own, because a poll that is cancelled half-way loses what it had
/// begun: a connection that is being made would never be finished.
fn poll(mut event_loop: EventLoop) -> (Poller, mpsc::Receiver<Result<Event, ConnectionError>>) {
    let (events, received) = mpsc::channel(1);
    let task = tokio::spawn(async move {
        loop {
            let event = event_loop.poll().await;
            let failed = event.is_err();
            if events.send(event).await.is_err() || failed {
                return;
            }
        }
    });
    (Poller(task), received)
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
}

impl Session<'_> {
    async fn drive(&mut self, event_loop: EventLoop) -> DisconnectReason {
        let (_poller, mut events) = poll(event_loop);
        let mut tick = time::interval(TICK);
        tick.set_missed_tick_behavior(time::MissedTickBehavior::Delay);
        let nudge = self.context.nudge.clone();
        let mut stop = self.context.stop.clone();
        loop {
            let step = tokio::select! {
                event = events.recv() => match event {
                    None => Err(DisconnectReason::Protocol("the MQTT client ended without an error".into())),
                    Some(Ok(event)) => self.on_event(event).await,
                    Some(Err(error)) => {
                        let limit = self.context.options.packet_limit().bytes();
                        Err(reason::classify(&error, limit, &*self.context.environment.wall))
                    }
                },
                () = nudge.notified() => self.pump(),
                _ = tick.tick() => self.on_tick(),
                () = stop.requested(), if !self.stopping => self.begin_stop(),
            };
            if let Err(reason) = step {
                // A connection that breaks while we say goodbye is over as well.
                return if self.stopping {
                    DisconnectReason::Stopped
                } else {
                    reason
                };
            }
        }
    }

    async fn on_event(&mut self, event: Event) -> Result<(), DisconnectReason> {
        match event {
            Event::Incoming(Packet::ConnAck(accepted)) => self.on_connected(accepted.session_present),
            Event::Incoming(Packet::Publish(publish)) => self.deliver(publish).await,
            Event::Incoming(Packet::PubAck(acknowledgement)) => self.on_acknowledged(acknowledgement.pkid),
            Event::Incoming(Packet::SubAck(answer)) => {
                self.on_subscribed(&answer);
                Ok(())
            }
            Event::Outgoing(rumqttc::Outgoing::Publish(id)) if id != 0 => self
                .window
                .sent(id)
                .map_err(|error| DisconnectReason::Protocol(error.to_string())),
            Event::Outgoing(rumqttc::Outgoing::AwaitAck(id)) => Err(DisconnectReason::Protocol(format!(
                "packet id {id} came round before its acknowledgement"
            ))),
            Event::Outgoing(rumqttc::Outgoing::Disconnect) => Err(DisconnectReason::Stopped),
            Event::Incoming(_) | Event::Outgoing(_) => Ok(()),
        }
    }

    fn on_connected(&mut self, session_present: bool) -> Result<(), DisconnectReason> {
        let now = Instant::now();
        self.connected = Some(now);
        if self.plan == Plan::Purge {
            return Err(DisconnectReason::Purged);
        }
        self.context.view.change(|view| {
            view.state = LinkState::Connected {
                since: now,
                session_present,
            };
            view.counters.connects += 1;
        });
        tracing::info!(session_present, "connected to the broker");
        if self.plan == Plan::Usual && !self.context.options.filters.is_empty() {
            let filters = self.context.options.filters.iter();
            let filters = filters.map(|filter| SubscribeFilter::new(filter.clone(), QoS::AtLeastOnce));
            self.client.try_subscribe_many(filters).map_err(client_full)?;
        }
        self.publish_status(true)?;
        self.pump()
    }

    fn publish_status(&mut self, online: bool) -> Result<(), DisconnectReason> {
        let (topic, status) = (
            self.context.options.status_topic(),
            self.context.options.status(online),
        );
        self.client
            .try_publish(topic, QoS::AtLeastOnce, true, status)
            .map_err(client_full)?;
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
            if any {
                view.raise(alarm)
            } else {
                view.clear(&alarm)
            }
        });
    }

    fn on_acknowledged(&mut self, id: u16) -> Result<(), DisconnectReason> {
        let ticket = self
            .window
            .acknowledged(id)
            .map_err(|error| DisconnectReason::Protocol(error.to_string()))?;
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
    fn pump(&mut self) -> Result<(), DisconnectReason> {
        if self.connected.is_none() || self.stopping {
            return Ok(());
        }
        loop {
            let room = self.window.room();
            if room == 0 {
                return Ok(());
            }
            let batch = match self.context.outbox.next(self.after, room) {
                Ok(batch) => batch,
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
                    .map_err(client_full)?;
                self.window
                    .submitted(Ticket::Record(record.sequence), Instant::now());
                self.context.view.change(|view| view.counters.published += 1);
            }
        }
    }

    fn report_outbox(&self, result: Result<(), OutboxError>) {
        match result {
            Err(error) => {
                tracing::error!("{error}");
                self.context.view.change(|view| view.raise(Alarm::Outbox(error)));
            }
            Ok(()) => self
                .context
                .view
                .change(|view| view.clear(&Alarm::Outbox(OutboxError(String::new())))),
        }
    }

    fn on_tick(&mut self) -> Result<(), DisconnectReason> {
        let Some(connected) = self.connected else {
            return Ok(());
        };
        let limit = self.context.options.ack_timeout;
        if self
            .window
            .oldest_since()
            .is_some_and(|since| since.elapsed() > limit)
        {
            return Err(DisconnectReason::Unacknowledged(limit.as_secs()));
        }
        if let Plan::Deaf { until } = self.plan
            && Instant::now() >= until
        {
            return Err(DisconnectReason::HoldOver);
        }
        self.context.lasting(connected.elapsed());
        self.pump()
    }

    /// Hands a message to the daemon and acknowledges it after that. While the daemon's queue is full nothing else is
    /// done, which holds the broker back.
    async fn deliver(&mut self, publish: Publish) -> Result<(), DisconnectReason> {
        let since = Instant::now();
        let mut message = Inbound {
            topic: publish.topic.clone(),
            payload: publish.payload.to_vec(),
            retained: publish.retain,
            duplicate: publish.dup,
        };
        loop {
            match self.context.inbound.try_send(message) {
                Ok(()) => break,
                Err(std::sync::mpsc::TrySendError::Disconnected(_)) => return Err(DisconnectReason::Stopped),
                Err(std::sync::mpsc::TrySendError::Full(back)) => message = back,
            }
            let limit = self.context.options.stall_timeout;
            if self.context.stop.is_requested() {
                return Ok(()); // not acknowledged: the broker brings it again
            }
            if since.elapsed() > limit {
                return Err(DisconnectReason::ConsumerStalled(limit.as_secs()));
            }
            time::sleep(RETRY_INBOUND).await;
        }
        self.context.view.change(|view| view.counters.received += 1);
        self.client.try_ack(&publish).map_err(client_full)
    }

    fn begin_stop(&mut self) -> Result<(), DisconnectReason> {
        self.stopping = true;
        if self.connected.is_none() {
            return Err(DisconnectReason::Stopped);
        }
        self.publish_status(false)
    }

    /// Once everything published is acknowledged, the offline status included, the broker may know that we leave on
    /// purpose. Without that it would publish the will, which says the same.
    fn say_goodbye_when_done(&self) -> Result<(), DisconnectReason> {
        match self.window.is_empty() {
            true => self.client.try_disconnect().map_err(client_full),
            false => Ok(()),
        }
    }
}

/// The queue to the client is larger than all that can be under way, so this says that the client has stopped working.
fn client_full(error: rumqttc::ClientError) -> DisconnectReason {
    // Its text would show whole payloads.
    let kind = match error {
        rumqttc::ClientError::Request(_) => "has ended",
        rumqttc::ClientError::TryRequest(_) => "takes no more requests",
    };
    DisconnectReason::Protocol(format!("the MQTT client {kind}"))
}
