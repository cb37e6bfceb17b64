/// What a spool lost or refused, and what it delivered, since its folder was created. Counts survive restarts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Records that were acknowledged.
    pub acknowledged: u64,
    /// Unacknowledged records dropped because the bound was reached or the disk was full.
    pub dropped_records: u64,
    /// Their topics and payloads, in bytes.
    pub dropped_bytes: u64,
    /// Unacknowledged records dropped because of their age.
    pub expired_records: u64,
    /// Their topics and payloads, in bytes.
    pub expired_bytes: u64,
    /// Records refused because there was no room.
    pub refused_records: u64,
    /// Their topics and payloads, in bytes.
    pub refused_bytes: u64,
    /// Records refused because they were too long.
    pub oversize_records: u64,
    /// Places where a record was damaged and the rest of its segment was given up.
    pub corrupt_places: u64,
    /// Bytes on disk given up there.
    pub corrupt_bytes: u64,
    /// Bytes at the end of the newest segment that were no whole record at a start: an append that was cut.
    pub torn_bytes: u64,
    /// Failed attempts to make records durable that no `append` reported.
    pub sync_failures: u64,
}

impl Counters {
    pub(super) const COUNT: usize = 12;

    pub(super) fn to_array(self) -> [u64; Self::COUNT] {
        [
            self.acknowledged,
            self.dropped_records,
            self.dropped_bytes,
            self.expired_records,
            self.expired_bytes,
            self.refused_records,
            self.refused_bytes,
            self.oversize_records,
            self.corrupt_places,
            self.corrupt_bytes,
            self.torn_bytes,
            self.sync_failures,
        ]
    }

    pub(super) fn from_array(numbers: [u64; Self::COUNT]) -> Self {
        let [
            acknowledged,
            dropped_records,
            dropped_bytes,
            expired_records,
            expired_bytes,
            refused_records,
            refused_bytes,
            oversize_records,
            corrupt_places,
            corrupt_bytes,
            torn_bytes,
            sync_failures,
        ] = numbers;
        Self {
            acknowledged,
            dropped_records,
            dropped_bytes,
            expired_records,
            expired_bytes,
            refused_records,
            refused_bytes,
            oversize_records,
            corrupt_places,
            corrupt_bytes,
            torn_bytes,
            sync_failures,
        }
    }
}
