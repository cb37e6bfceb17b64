use std::sync::Arc;
use std::sync::mpsc::{SyncSender, TrySendError};
use std::time::{Duration, Instant};

use rumqttc::{ConnectionError, Event, EventLoop, Packet, PubAck, Publish, StateError};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time;

use super::Inbound;
use super::clock::WallClock;
use super::reason::{self, DisconnectReason};
use super::supervisor::Stop;

/// How often a full queue of the daemon is tried again.
const RETRY_INBOUND: Duration = Duration::from_millis(10);

/// How long the client may take to say why it ended.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// What the poller tells the session.
pub(super) enum Polled {
    /// The client did something other than receiving a message.
    Event(Event),
    /// A message was handed to the daemon.
    Received,
    /// The connection is over.
    Ended(DisconnectReason),
}

/// The task that polls the client until it fails. A task of its own, because a poll that is cancelled half-way loses what
/// it had begun: a connection that is being made would never be finished. It ends with this value.
pub(super) struct Poller {
    task: JoinHandle<()>,
    polled: mpsc::Receiver<Polled>,
}

impl Drop for Poller {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Poller {
    /// Starts to poll.
    pub(super) fn start(event_loop: EventLoop, doorstep: Doorstep) -> Self {
        let (sender, polled) = mpsc::channel(1);
        let task = tokio::spawn(async move {
            let reason = poll(event_loop, &doorstep, &sender).await;
            // The session may be gone already.
            drop(sender.send(Polled::Ended(reason)).await);
        });
        Self { task, polled }
    }

    /// What happens next. Can be cancelled.
    pub(super) async fn next(&mut self) -> Polled {
        let ended = || Polled::Ended(DisconnectReason::Protocol("the MQTT client has panicked".into()));
        self.polled.recv().await.unwrap_or_else(ended)
    }

    /// Why the client has ended, when that showed before this was told. What else it did no longer matters.
    pub(super) async fn reason(mut self) -> DisconnectReason {
        let told = async {
            loop {
                if let Polled::Ended(reason) = self.next().await {
                    return reason;
                }
            }
        };
        let overrun = |_| DisconnectReason::Protocol("the MQTT client does not take requests".into());
        time::timeout(LAST_WORDS, told).await.unwrap_or_else(overrun)
    }
}

async fn poll(
    mut event_loop: EventLoop,
    doorstep: &Doorstep,
    session: &mpsc::Sender<Polled>,
) -> DisconnectReason {
    let mut unsent = false;
    loop {
        // The client hands out the packets of one read one by one; their acknowledgements leave together.
        if unsent && event_loop.state.events.is_empty() {
            if let Err(reason) = doorstep.flush(&mut event_loop).await {
                return reason;
            }
            unsent = false;
        }
        let polled = match event_loop.poll().await {
            Ok(Event::Incoming(Packet::Publish(publish))) => {
                if let Err(reason) = doorstep.receive(&mut event_loop, publish).await {
                    return reason;
                }
                unsent = true;
                Polled::Received
            }
            Ok(event) => Polled::Event(event),
            Err(error) => return doorstep.meaning(&error),
        };
        if session.send(polled).await.is_err() {
            return DisconnectReason::Stopped;
        }
    }
}

/// Where messages pass from the network to the daemon.
pub(super) struct Doorstep {
    pub(super) inbound: SyncSender<Inbound>,
    pub(super) stop: Stop,
    pub(super) stall_timeout: Duration,
    pub(super) network_timeout: Duration,
    pub(super) packet_limit: usize,
    pub(super) wall: Arc<dyn WallClock>,
}

impl Doorstep {
    fn meaning(&self, error: &ConnectionError) -> DisconnectReason {
        reason::classify(error, self.packet_limit, &*self.wall)
    }

    /// Hands a message over, and writes its acknowledgement after that.
    async fn receive(&self, event_loop: &mut EventLoop, publish: Publish) -> Result<(), DisconnectReason> {
        let acknowledgement = match publish.qos {
            rumqttc::QoS::AtMostOnce => None,
            rumqttc::QoS::AtLeastOnce => Some(publish.pkid),
            // We subscribe at QoS 1, so a broker must not.
            rumqttc::QoS::ExactlyOnce => {
                return Err(DisconnectReason::Protocol(
                    "the broker sent a message at QoS 2".into(),
                ));
            }
        };
        let message = Inbound {
            payload: publish.payload.to_vec(),
            topic: publish.topic,
            retained: publish.retain,
            duplicate: publish.dup,
        };
        match self.inbound.try_send(message) {
            Ok(()) => {}
            Err(TrySendError::Full(message)) => {
                self.flush(event_loop).await?; // this may take a while
                self.wait_for_room(message).await?;
            }
            Err(TrySendError::Disconnected(_)) => return Err(DisconnectReason::Stopped),
        }
        match acknowledgement {
            Some(id) => self.acknowledge(event_loop, id).await,
            None => Ok(()),
        }
    }

    /// The daemon's queue is full. Meanwhile nothing else is read, which holds the broker back.
    async fn wait_for_room(&self, mut message: Inbound) -> Result<(), DisconnectReason> {
        let since = Instant::now();
        loop {
            // Given up without acknowledgement: the broker brings it again at the next connect.
            if self.stop.is_requested() {
                return Err(DisconnectReason::Stopped);
            }
            if since.elapsed() > self.stall_timeout {
                return Err(DisconnectReason::ConsumerStalled(self.stall_timeout.as_secs()));
            }
            time::sleep(RETRY_INBOUND).await;
            match self.inbound.try_send(message) {
                Ok(()) => return Ok(()),
                Err(TrySendError::Full(back)) => message = back,
                Err(TrySendError::Disconnected(_)) => return Err(DisconnectReason::Stopped),
            }
        }
    }

    /// Writes an acknowledgement straight to the network's buffer. The client's own queue of requests takes one for each
    /// ten packets that it reads, so a broker that delivers a long backlog would overrun it.
    async fn acknowledge(&self, event_loop: &mut EventLoop, id: u16) -> Result<(), DisconnectReason> {
        let network = event_loop
            .network
            .as_mut()
            .ok_or(DisconnectReason::ClosedByPeer)?;
        self.within_time(network.write(Packet::PubAck(PubAck::new(id))))
            .await
    }

    /// Sends what is in the network's buffer.
    async fn flush(&self, event_loop: &mut EventLoop) -> Result<(), DisconnectReason> {
        let network = event_loop
            .network
            .as_mut()
            .ok_or(DisconnectReason::ClosedByPeer)?;
        self.within_time(network.flush()).await
    }

    async fn within_time(
        &self,
        sending: impl Future<Output = Result<(), StateError>>,
    ) -> Result<(), DisconnectReason> {
        let error = match time::timeout(self.network_timeout, sending).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => ConnectionError::MqttState(error),
            Err(_) => ConnectionError::FlushTimeout,
        };
        Err(self.meaning(&error))
    }
}
