/// A message from the broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inbound {
    /// Its topic.
    pub topic: String,
    /// Its content.
    pub payload: Vec<u8>,
    /// Kept by the broker from earlier, rather than published now. Every reconnect brings it again.
    pub retained: bool,
    /// The broker says it may have delivered this before.
    pub duplicate: bool,
}
