use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::disk::Survival;

#[derive(Clone, Debug)]
enum Operation {
    Append { length: usize },
    Read { records: usize, bytes: usize },
    Acknowledge { which: usize },
    Close,
    Kill,
    PowerCut { seed: u64 },
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        12 => (8usize..480).prop_map(|length| Operation::Append { length }),
        4 => (1usize..12, 1usize..2000).prop_map(|(records, bytes)| Operation::Read { records, bytes }),
        8 => (0usize..1000).prop_map(|which| Operation::Acknowledge { which }),
        1 => Just(Operation::Close),
        1 => Just(Operation::Kill),
        1 => any::<u64>().prop_map(|seed| Operation::PowerCut { seed }),
    ]
}

/// What should wait, by sequence.
#[derive(Default)]
struct Model {
    waiting: BTreeMap<u64, Vec<u8>>,
    /// Acknowledged, but not below everything that waits: a restart may forget it.
    forgettable: BTreeMap<u64, Vec<u8>>,
    dropped: u64,
    dropped_bytes: u64,
    highest: u64,
}

impl Model {
    fn acknowledge(&mut self, sequence: u64) {
        if let Some(payload) = self.waiting.remove(&sequence) {
            self.forgettable.insert(sequence, payload);
        }
        let oldest = self.waiting.keys().next().copied().unwrap_or(u64::MAX);
        self.forgettable.retain(|sequence, _| *sequence > oldest);
    }

    /// Some of the oldest went.
    fn drop_oldest(&mut self, dropped: Dropped) {
        for _ in 0..dropped.records {
            let (_, payload) = self.waiting.pop_first().expect("no more was there to drop");
            self.dropped_bytes += payload.len() as u64 + 1;
        }
        self.dropped += dropped.records;
    }

    fn restart(&mut self) {
        self.waiting.append(&mut self.forgettable);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn behaves_like_a_map_that_loses_its_oldest(operations in prop::collection::vec(operation(), 1..300)) {
        let options = SpoolOptions { max_bytes: Bytes::kib(14), ..small() };
        let disk = SimDisk::default();
        let mut spool = open(&disk, options);
        let mut model = Model::default();
        for (number, operation) in operations.into_iter().enumerate() {
            match operation {
                Operation::Append { length } => {
                    let payload = payload(number as u64, length);
                    let appended = spool.append("t", &payload, at(0)).unwrap();
                    prop_assert!(appended.sequence > model.highest);
                    model.highest = appended.sequence;
                    model.drop_oldest(appended.dropped);
                    model.waiting.insert(appended.sequence, payload);
                    let first = *model.waiting.keys().next().unwrap();
                    model.forgettable.retain(|sequence, _| *sequence > first);
                }
                Operation::Read { records, bytes } => {
                    let read = spool.read_after(None, records, bytes).unwrap();
                    let expected: Vec<_> = model.waiting.iter().take(read.len()).collect();
                    let found: Vec<_> = read.iter().map(|r| (&r.sequence, &r.payload)).collect();
                    prop_assert_eq!(found, expected);
                    let more = model.waiting.len() > read.len();
                    let total: usize = read.iter().map(|r| r.payload.len() + 1).sum();
                    prop_assert!(read.len() == records || !more || total + 481 > bytes, "stopped early");
                }
                Operation::Acknowledge { which } => {
                    let count = model.waiting.len();
                    let Some(sequence) = model.waiting.keys().nth(which % count.max(1)).copied() else { continue };
                    prop_assert!(spool.acknowledge(sequence).unwrap());
                    model.acknowledge(sequence);
                }
                Operation::Close => {
                    spool.close().unwrap();
                    spool = open(&disk, options);
                    model.restart();
                }
                Operation::Kill => {
                    kill(spool);
                    disk.reboot(Survival::Everything);
                    spool = open(&disk, options);
                    model.restart();
                }
                Operation::PowerCut { seed } => {
                    spool.sync().unwrap();
                    kill(spool);
                    disk.reboot(Survival::Random(seed));
                    spool = open(&disk, options);
                    model.restart();
                }
            }
            prop_assert_eq!(spool.len(), model.waiting.len() as u64);
            prop_assert!(spool.bytes_on_disk() <= options.max_bytes);
            prop_assert_eq!(spool.bytes_on_disk().0, disk.used());
            let counters = spool.counters();
            prop_assert_eq!((counters.dropped_records, counters.dropped_bytes), (model.dropped, model.dropped_bytes));
            prop_assert_eq!((counters.corrupt_places, counters.torn_bytes), (0, 0));
        }
        let found = drain(&mut spool).into_iter().map(|r| (r.sequence, r.payload)).collect::<BTreeMap<_, _>>();
        prop_assert_eq!(found, model.waiting);
    }
}
