//! The cursor and the counters: a small file of two places that are overwritten in turn, so that saving needs no
//! room on a full disk and a write that is cut leaves the other place as it was.

use std::path::{Path, PathBuf};

use super::Counters;
use crate::disk::{At, Disk, DiskError, DiskFile, OpenMode, read_full};
use crate::durable;

const MAGIC: &[u8; 8] = b"EOSTATE1";
/// Distance of the two places: no sector or page holds parts of both.
const PLACE: u64 = 4096;
/// Size of the file.
pub(super) const FILE_BYTES: u64 = 2 * PLACE;
const COUNTERS: usize = Counters::COUNT;
const LENGTH: usize = 8 + 8 * (3 + COUNTERS) + 4;

/// What is kept beside the records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct State {
    /// Everything below is acknowledged or gone.
    pub(super) cursor: u64,
    /// Sequences below may have been given to records, also to records that a power cut took.
    pub(super) reserved: u64,
    pub(super) counters: Counters,
}

/// The open file.
#[derive(Debug)]
pub(super) struct StateFile {
    file: Box<dyn DiskFile>,
    path: PathBuf,
    generation: u64,
    /// The place that surely holds a durable state; writes go to the other.
    durable: u64,
    unsynced: bool,
}

impl StateFile {
    /// Opens the file, creating it if needed, and locks it. The state is `None` if the file holds none: it is new,
    /// or both places are damaged.
    pub(super) fn open(disk: &dyn Disk, path: &Path) -> Result<Option<(Self, Option<State>)>, DiskError> {
        let file = disk.open(path, OpenMode::OpenOrCreate).at("open", path)?;
        if !file.try_lock().at("lock", path)? {
            return Ok(None);
        }
        if file.length().at("read", path)? < FILE_BYTES {
            // Written, not only extended: overwriting must need no room later.
            file.write_at(&[0; FILE_BYTES as usize], 0).at("write", path)?;
        }
        // What a killed process left in memory must not be lost by relying on it.
        file.sync().at("sync", path)?;
        durable::sync_folder_of(disk, path)?;
        let mut newest: Option<(u64, State, u64)> = None;
        for place in 0..2 {
            let mut bytes = [0; LENGTH];
            let count = read_full(file.as_ref(), &mut bytes, place * PLACE).at("read", path)?;
            if let Some((generation, state)) = decode(&bytes[..count])
                && newest.is_none_or(|(best, ..)| generation > best)
            {
                newest = Some((generation, state, place));
            }
        }
        let (generation, durable) = newest.map_or((0, 1), |(generation, _, place)| (generation, place));
        let opened = Self {
            file,
            path: path.into(),
            generation,
            durable,
            unsynced: false,
        };
        Ok(Some((opened, newest.map(|(_, state, _)| state))))
    }

    /// Writes the state; with `sync` it survives a power cut, otherwise the end of the process.
    pub(super) fn save(&mut self, state: &State, sync: bool) -> Result<(), DiskError> {
        let place = 1 - self.durable;
        self.generation += 1;
        let bytes = encode(self.generation, state);
        self.file
            .write_at(&bytes, place * PLACE)
            .at("write", &self.path)?;
        self.unsynced = true;
        if sync { self.sync() } else { Ok(()) }
    }

    /// Makes the last saved state durable, if it is not.
    pub(super) fn sync(&mut self) -> Result<(), DiskError> {
        if self.unsynced {
            self.file.sync().at("sync", &self.path)?;
            self.durable = 1 - self.durable;
            self.unsynced = false;
        }
        Ok(())
    }
}

fn encode(generation: u64, state: &State) -> [u8; LENGTH] {
    let mut out = [0; LENGTH];
    out[..8].copy_from_slice(MAGIC);
    let numbers = [generation, state.cursor, state.reserved];
    let numbers = numbers.into_iter().chain(state.counters.to_array());
    for (slot, number) in out[8..LENGTH - 4].chunks_exact_mut(8).zip(numbers) {
        slot.copy_from_slice(&number.to_le_bytes());
    }
    let sum = crc32c::crc32c(&out[..LENGTH - 4]);
    out[LENGTH - 4..].copy_from_slice(&sum.to_le_bytes());
    out
}

fn decode(bytes: &[u8]) -> Option<(u64, State)> {
    let (content, sum) = bytes.split_last_chunk::<4>()?;
    if bytes.len() != LENGTH
        || !content.starts_with(MAGIC)
        || crc32c::crc32c(content) != u32::from_le_bytes(*sum)
    {
        return None;
    }
    let mut numbers = content[8..]
        .as_chunks::<8>()
        .0
        .iter()
        .map(|n| u64::from_le_bytes(*n));
    let (generation, cursor, reserved) = (numbers.next()?, numbers.next()?, numbers.next()?);
    let mut counters = [0; COUNTERS];
    for counter in &mut counters {
        *counter = numbers.next()?;
    }
    let state = State {
        cursor,
        reserved,
        counters: Counters::from_array(counters),
    };
    Some((generation, state))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::{SimDisk, Survival};

    const PATH: &str = "/state";

    fn state(cursor: u64) -> State {
        State {
            cursor,
            reserved: cursor * 2,
            counters: Counters {
                dropped_records: 3,
                sync_failures: 9,
                ..Counters::default()
            },
        }
    }

    fn open(disk: &SimDisk) -> (StateFile, Option<State>) {
        StateFile::open(disk, Path::new(PATH)).unwrap().unwrap()
    }

    #[test]
    fn a_cut_at_any_byte_or_step_leaves_the_last_durable_state_or_a_later_one() {
        // Durable 1, then 2 and 3 written without sync, then 4 durable.
        let script = |file: &mut StateFile| {
            file.save(&state(2), false)?;
            file.save(&state(3), false)?;
            file.save(&state(4), true)
        };
        for bytes in 0..=3 * LENGTH as u64 {
            for seed in 0..8 {
                let disk = SimDisk::default();
                open(&disk).0.save(&state(1), true).unwrap();
                let (mut file, _) = open(&disk);
                disk.cut_after_bytes(bytes);
                let done = script(&mut file);
                disk.reboot(if seed == 0 {
                    Survival::Synced
                } else {
                    Survival::Random(seed)
                });
                let found = open(&disk).1.unwrap();
                assert!((1..=4).any(|cursor| found == state(cursor)), "{found:?}");
                assert!(done.is_err() || found == state(4), "reported durable, then lost");
            }
        }
    }

    #[test]
    fn saving_needs_no_room() {
        let disk = SimDisk::default();
        let (mut file, found) = open(&disk);
        assert_eq!(found, None);
        disk.set_capacity(Some(disk.used()));
        for cursor in 1..5 {
            file.save(&state(cursor), true).unwrap();
        }
        disk.reboot(Survival::Synced);
        assert_eq!(open(&disk).1, Some(state(4)));
        assert_eq!(disk.used(), FILE_BYTES);
    }

    #[test]
    fn one_damaged_place_leaves_the_other_and_two_leave_nothing() {
        let disk = SimDisk::default();
        let (mut file, _) = open(&disk);
        file.save(&state(1), true).unwrap();
        file.save(&state(2), true).unwrap();
        let damage = |place: u64| {
            let file = disk.open(Path::new(PATH), OpenMode::ReadWrite).unwrap();
            file.write_at(&[0xaa; 9], place * PLACE + 20).unwrap();
        };
        damage(file.durable);
        assert_eq!(open(&disk).1, Some(state(1)));
        damage(1 - file.durable);
        assert_eq!(open(&disk).1, None);
    }
}
