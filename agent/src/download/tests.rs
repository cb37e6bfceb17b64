use std::cell::Cell;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::Mutex;
use std::sync::mpsc::Sender;
use std::thread;

use edgeopt_models::bundle::{Limits, Trust, generate_keys};

use super::*;
use crate::clock::ManualClock;
use crate::disk::{OpenMode, SimDisk};
use crate::protocol::{BlobChunk, BlobRequest, TopicName};
use crate::store::tests::{bundle, unsigned};

/// How a server behaves from one request to the next; the last one stays.
#[derive(Clone, Copy, PartialEq)]
enum Manner {
    /// Ranges, and a validator.
    Proper,
    /// Ends the connection after so many bytes.
    CutAfter(usize),
    /// Knows no ranges: always all of it.
    NoRanges,
    /// Only a status.
    Status(u16),
    /// Ranges, and other bytes than announced.
    OtherBytes,
    /// Says it sends what was asked for, and begins elsewhere.
    WrongRange,
}

struct Server {
    url: String,
    /// Head of each request.
    seen: Arc<Mutex<Vec<String>>>,
}

fn serve(content: Vec<u8>, etag: &'static str, manners: Vec<Manner>) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/m.edge", listener.local_addr().unwrap());
    let seen = Arc::new(Mutex::new(Vec::new()));
    let heads = Arc::clone(&seen);
    thread::spawn(move || {
        let mut manners = manners.into_iter().peekable();
        for stream in listener.incoming() {
            let manner = if manners.len() > 1 {
                manners.next().unwrap()
            } else {
                *manners.peek().unwrap()
            };
            answer(&mut stream.unwrap(), &content, etag, manner, &heads);
        }
    });
    Server { url, seen }
}

fn answer(stream: &mut TcpStream, content: &[u8], etag: &str, manner: Manner, heads: &Mutex<Vec<String>>) {
    let head: Vec<String> = BufReader::new(stream.try_clone().unwrap())
        .lines()
        .map(Result::unwrap)
        .take_while(|line| !line.is_empty())
        .collect();
    let field = |name: &str| {
        head.iter().find_map(|line| {
            let (key, value) = line.split_once(": ")?;
            key.eq_ignore_ascii_case(name).then(|| value.to_owned())
        })
    };
    let from = field("range").map(|range| {
        let first = range.strip_prefix("bytes=").unwrap().strip_suffix('-').unwrap();
        first.parse::<usize>().unwrap()
    });
    let unchanged = field("if-range").is_none_or(|validator| validator == etag);
    heads.lock().unwrap().push(head.join("\n"));
    let size = content.len();
    let mut body = content.to_vec();
    if manner == Manner::OtherBytes {
        body[size / 2..].fill(0);
    }
    let head = match (manner, from) {
        (Manner::Status(status), _) => {
            body.clear();
            format!("{status} No\r\nContent-Length: 0")
        }
        (Manner::NoRanges, _) | (_, None) => format!("200 OK\r\nContent-Length: {size}\r\nETag: {etag}"),
        (_, Some(from)) if from >= size => {
            body.clear();
            format!("416 No\r\nContent-Range: bytes */{size}\r\nContent-Length: 0")
        }
        (_, Some(from)) if unchanged => {
            let from = from + usize::from(manner == Manner::WrongRange);
            body.drain(..from);
            let (last, length) = (size - 1, body.len());
            format!("206 Partial\r\nContent-Range: bytes {from}-{last}/{size}\r\nContent-Length: {length}")
        }
        _ => format!("200 OK\r\nContent-Length: {size}\r\nETag: {etag}"),
    };
    if let Manner::CutAfter(count) = manner {
        body.truncate(count);
    }
    // The client may have gone.
    let _ = stream.write_all(format!("HTTP/1.1 {head}\r\nConnection: close\r\n\r\n").as_bytes());
    let _ = stream.write_all(&body);
}

struct Setting {
    folder: tempfile::TempDir,
    store: Store,
    clock: Arc<ManualClock>,
    blobs: Blobs,
}

fn setting() -> Setting {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&folder.path().join("store"), Bytes::ZERO).unwrap();
    Setting {
        folder,
        store,
        clock: Arc::default(),
        blobs: Blobs::new(1000, |_, _| {}),
    }
}

impl Setting {
    fn fetch(&self, spec: &SlotSpec, acceptance: Acceptance) -> Result<(), FetchError> {
        self.fetch_until(spec, acceptance, &|| false).0
    }

    /// The result, and what was waited for last.
    fn fetch_until(
        &self,
        spec: &SlotSpec,
        acceptance: Acceptance,
        superseded: &dyn Fn() -> bool,
    ) -> (Result<(), FetchError>, String) {
        let waits = Cell::new(String::new());
        let mut fetcher = Fetcher::new(
            self.store.clone(),
            acceptance,
            HttpClient::new(None).unwrap(),
            self.blobs.clone(),
            Arc::clone(&self.clock) as Arc<dyn Clock>,
        );
        let fetching = Fetching {
            superseded,
            waits_for: &|what| {
                if !what.is_empty() {
                    waits.set(what.to_owned());
                }
            },
        };
        let result = fetcher.fetch(spec, &fetching);
        (result, waits.take())
    }

    fn reason(&self, spec: &SlotSpec) -> String {
        match self.fetch(spec, unsigned()) {
            Err(FetchError::Permanent(reason)) => reason,
            other => panic!("{other:?}"),
        }
    }

    fn has(&self, spec: &SlotSpec) -> bool {
        let stored = self.store.check(spec.sha256.parse().unwrap(), &unsigned());
        stored.unwrap().is_some()
    }

    fn put_partial(&self, spec: &SlotSpec, bytes: &[u8]) {
        let path = self.store.partial_path(spec.sha256.parse().unwrap());
        std::fs::write(path, bytes).unwrap();
    }
}

fn spec(bytes: &[u8], digest: BundleDigest, sources: &[&str]) -> SlotSpec {
    let source = |text: &&str| match text.strip_prefix("blob ") {
        Some(id) => ModelSource::Blob(id.parse().unwrap()),
        None => ModelSource::Url((*text).to_owned()),
    };
    SlotSpec {
        model: "m".into(),
        version: "1".into(),
        sha256: digest.to_string(),
        size: bytes.len() as u64,
        sources: sources.iter().map(source).collect(),
    }
}

#[test]
fn a_full_disk_is_waited_for_and_a_bundle_larger_than_the_disk_is_refused() {
    let (bytes, digest) = bundle("1", 100_000, None);
    let size = bytes.len() as u64;
    let disk = SimDisk::default();
    let folder = tempfile::tempdir().unwrap();
    let setting = Setting {
        store: Store::open_on(Arc::new(disk.clone()), Path::new("/store"), Bytes(500)).unwrap(),
        folder,
        clock: Arc::default(),
        blobs: Blobs::new(1000, |_, _| {}),
    };
    let source = setting.folder.path().join("b.edge");
    std::fs::write(&source, &bytes).unwrap();
    let spec = spec(&bytes, digest, &[&format!("file:{}", source.display())]);

    disk.set_capacity(Some(size + 499));
    let reason = setting.reason(&spec);
    assert!(
        reason.contains("never fits") && reason.contains("500 B"),
        "{reason}"
    );

    // Somebody else has the room for a quarter of an hour; a newer wish is heard meanwhile.
    disk.set_capacity(Some(size + 60_000));
    let other = setting
        .store
        .disk()
        .open(Path::new("/store/other"), OpenMode::Create)
        .unwrap();
    other.write_at(&[1; 60_000], 0).unwrap();
    let (result, waits) = setting.fetch_until(&spec, unsigned(), &|| {
        setting.clock.elapsed() > Duration::from_secs(60)
    });
    assert_eq!(result, Err(FetchError::Superseded));
    assert!(
        waits.contains("waits for room") && waits.contains("more are needed"),
        "{waits}"
    );
    let until = setting.clock.elapsed() + Duration::from_secs(900);
    let freed = || {
        if setting.clock.elapsed() > until {
            other.set_len(0).unwrap();
        }
        false
    };
    setting.fetch_until(&spec, unsigned(), &freed).0.unwrap();
    let after = setting.clock.elapsed().saturating_sub(until);
    assert!(after < Duration::from_secs(5), "it goes on soon: {after:?}");
    assert!(setting.has(&spec));
}

#[test]
fn a_disk_that_others_fill_during_a_download_is_not_filled_to_its_last_byte() {
    let (bytes, digest) = bundle("1", 100_000, None);
    let server = serve(
        bytes.clone(),
        "\"v1\"",
        vec![Manner::CutAfter(30_000), Manner::Proper],
    );
    let disk = SimDisk::default();
    let setting = Setting {
        store: Store::open_on(Arc::new(disk.clone()), Path::new("/store"), Bytes(500)).unwrap(),
        folder: tempfile::tempdir().unwrap(),
        clock: Arc::default(),
        blobs: Blobs::new(1000, |_, _| {}),
    };
    let spec = spec(&bytes, digest, &[&server.url]);
    let capacity = disk.used() + bytes.len() as u64 + 5000;
    disk.set_capacity(Some(capacity));
    let other = setting
        .store
        .disk()
        .open(Path::new("/store/other"), OpenMode::Create)
        .unwrap();
    // Once the first attempt has ended.
    let (begun, filled) = (setting.clock.elapsed(), Cell::new(false));
    let others = || {
        let waited = setting.clock.elapsed().saturating_sub(begun);
        if waited > Duration::ZERO && !filled.replace(true) {
            other.write_at(&[1; 20_000], 0).unwrap();
        }
        if waited > Duration::from_secs(300) {
            other.set_len(0).unwrap();
        }
        assert!(capacity - disk.used() >= 500, "the margin stays free");
        false
    };
    let (result, waits) = setting.fetch_until(&spec, unsigned(), &others);
    result.unwrap();
    assert!(filled.get() && waits.contains("waits for room"), "{waits}");
    assert_eq!(server.seen.lock().unwrap().len(), 2, "no attempt without room");
    assert!(setting.has(&spec));
}

#[test]
fn a_cut_download_goes_on_where_it_ended() {
    let (bytes, digest) = bundle("1", 300_000, None);
    let manners = vec![
        Manner::CutAfter(100_000),
        Manner::CutAfter(50_000),
        Manner::Proper,
    ];
    let server = serve(bytes.clone(), "\"v1\"", manners);
    let setting = setting();
    let spec = spec(&bytes, digest, &[&server.url]);
    setting.fetch(&spec, unsigned()).unwrap();
    assert!(setting.has(&spec));
    let seen = server.seen.lock().unwrap().clone();
    assert_eq!(seen.len(), 3);
    assert!(!seen[0].to_lowercase().contains("range"));
    for (head, offset) in [(&seen[1], 100_000), (&seen[2], 150_000)] {
        let head = head.to_lowercase();
        assert!(head.contains(&format!("range: bytes={offset}-")), "{head}");
        assert!(head.contains("if-range: \"v1\""), "{head}");
    }
    // Once there, nothing is asked for again.
    setting.fetch(&spec, unsigned()).unwrap();
    assert_eq!(server.seen.lock().unwrap().len(), 3);
    let partial = setting.folder.path().join("store/partial");
    setting.store.collect().unwrap();
    assert_eq!(std::fs::read_dir(partial).unwrap().count(), 0);
}

#[test]
fn a_restart_goes_on_too_unless_the_file_has_changed() {
    let (bytes, digest) = bundle("1", 100_000, None);
    // An earlier process got this far, of the same file or of another.
    for (etag, resumes) in [("\"v1\"", true), ("\"v2\"", false)] {
        let server = serve(bytes.clone(), etag, vec![Manner::Proper]);
        let setting = setting();
        let spec = spec(&bytes, digest, &[&server.url]);
        let part = if resumes {
            &bytes[..40_000]
        } else {
            &[9; 40_000][..]
        };
        setting.put_partial(&spec, part);
        let notes = serde_json::json!({"url": server.url, "etag": "\"v1\""});
        let path = setting.store.partial_path(digest).with_extension("json");
        std::fs::write(path, notes.to_string()).unwrap();
        setting.fetch(&spec, unsigned()).unwrap();
        assert!(setting.has(&spec));
        assert_eq!(server.seen.lock().unwrap().len(), 1);
    }
}

#[test]
fn wrong_bytes_on_disk_are_given_up_and_fetched_afresh() {
    let (bytes, digest) = bundle("1", 100_000, None);
    for (manner, part) in [
        // Complete, too long, or half, and all of it wrong.
        (Manner::Proper, vec![1; bytes.len()]),
        (Manner::Proper, vec![1; bytes.len() + 5]),
        (Manner::Proper, vec![1; 50_000]),
        (Manner::NoRanges, bytes[..60_000].to_vec()),
    ] {
        let server = serve(bytes.clone(), "\"v1\"", vec![manner]);
        let setting = setting();
        let spec = spec(&bytes, digest, &[&server.url]);
        setting.put_partial(&spec, &part);
        setting.fetch(&spec, unsigned()).unwrap();
        assert!(setting.has(&spec));
        assert!(server.seen.lock().unwrap().len() <= 2);
    }
}

#[test]
fn sources_that_can_never_work_are_passed_over_and_named() {
    let (bytes, digest) = bundle("1", 50_000, None);
    let setting = setting();
    let lies = serve(bytes.clone(), "\"a\"", vec![Manner::OtherBytes]);
    let missing = serve(bytes.clone(), "\"a\"", vec![Manner::Status(404)]);
    let shorter = serve(bytes[..40_000].to_vec(), "\"a\"", vec![Manner::Proper]);
    let sources = [
        lies.url.as_str(),
        &missing.url,
        &shorter.url,
        "file:/nowhere/m.edge",
        "file:relative",
    ];
    let bad = spec(&bytes, digest, &sources);
    let reason = setting.reason(&bad);
    for words in [
        format!("{}: its SHA-256 is", lies.url),
        format!("{}: status 404", missing.url),
        format!(
            "{}: it has 40000 bytes, announced were {}",
            shorter.url,
            bytes.len()
        ),
        "/nowhere/m.edge: No such file".into(),
        "file:relative: write the whole path".into(),
    ] {
        assert!(reason.contains(&words), "{reason}");
    }
    assert!(!setting.has(&bad));
    assert_eq!(setting.reason(&spec(&bytes, digest, &[])), "no source was given");
    // A good one among them is found.
    let path = setting.folder.path().join("m.edge");
    std::fs::write(&path, &bytes).unwrap();
    let file = format!("file://{}", path.display());
    setting
        .fetch(&spec(&bytes, digest, &[&missing.url, &file]), unsigned())
        .unwrap();
    assert!(setting.has(&bad));
}

#[test]
fn a_range_that_is_not_the_one_asked_for_is_refused() {
    let (bytes, digest) = bundle("1", 50_000, None);
    let server = serve(bytes.clone(), "\"a\"", vec![Manner::WrongRange]);
    let setting = setting();
    let spec = spec(&bytes, digest, &[&server.url]);
    setting.put_partial(&spec, &bytes[..100]);
    let reason = setting.reason(&spec);
    assert!(
        reason.contains("asked for bytes from 100, it sends those from 101"),
        "{reason}"
    );
}

#[test]
fn what_may_get_better_is_tried_again_with_longer_and_longer_waits() {
    let (bytes, digest) = bundle("1", 50_000, None);
    let manners = vec![Manner::Status(503), Manner::Status(429), Manner::Proper];
    let server = serve(bytes.clone(), "\"a\"", manners);
    let setting = setting();
    setting
        .fetch(&spec(&bytes, digest, &[&server.url]), unsigned())
        .unwrap();
    assert_eq!(server.seen.lock().unwrap().len(), 3);

    // Nobody listens there; it waits until something newer is wanted.
    let (bytes, digest) = bundle("2", 50_000, None);
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let absent = format!("http://user:secret@127.0.0.1:{port}/m?token=secret");
    let asked = Cell::new(0);
    let superseded = || {
        asked.set(asked.get() + 1);
        asked.get() > 2000
    };
    let (result, waits) = setting.fetch_until(&spec(&bytes, digest, &[&absent]), unsigned(), &superseded);
    assert_eq!(result, Err(FetchError::Superseded));
    assert!(waits.contains("next attempt in"), "{waits}");
    assert!(waits.contains(&format!("127.0.0.1:{port}/m:")), "{waits}");
    assert!(!waits.contains("secret"), "{waits}");
    // 2000 looks of 200 ms: with waits of up to two minutes these are few attempts.
    assert!(setting.clock.slept().iter().all(|wait| *wait <= ASKS));
    assert!(setting.clock.elapsed() > Duration::from_secs(300));
}

#[test]
fn what_is_announced_but_not_acceptable_is_refused_and_removed() {
    let (ours, _) = generate_keys(None).unwrap();
    let (_, theirs) = generate_keys(None).unwrap();
    let (bytes, digest) = bundle("1", 5000, Some(&theirs));
    let setting = setting();
    let path = setting.folder.path().join("m.edge");
    std::fs::write(&path, &bytes).unwrap();
    let spec = spec(&bytes, digest, &[&format!("file:{}", path.display())]);
    let acceptance = Acceptance {
        trust: Trust::Require(vec![ours]),
        limits: Limits::default(),
    };
    let result = setting.fetch(&spec, acceptance);
    assert!(
        matches!(&result, Err(FetchError::Permanent(reason)) if reason.contains("not among the trusted keys")),
        "{result:?}"
    );
    assert!(!setting.has(&spec));
    assert!(!setting.store.partial_path(digest).exists());
    // Another name than announced.
    let other = SlotSpec {
        version: "7".into(),
        ..spec
    };
    let reason = setting.reason(&other);
    assert!(reason.contains("holds m 1, announced was m 7"), "{reason}");
    let nonsense = SlotSpec {
        sha256: "abc".into(),
        ..other
    };
    assert!(setting.reason(&nonsense).contains("64 lower-case hex digits"));
}

/// What a sender of chunks does with the n-th chunk.
type Chunks = fn(usize) -> bool;

/// A fetcher's blobs whose requests are answered by a thread that loses the chunks which `keeps` does not want.
fn sender(content: Vec<u8>, total: u64, keeps: Chunks) -> (Blobs, Arc<Mutex<Vec<BlobRequest>>>) {
    let (requests, received): (Sender<(TopicName, BlobRequest)>, _) = std::sync::mpsc::channel();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&asked);
    let blobs = Blobs::new(1000, move |id, request| {
        log.lock().unwrap().push(request.clone());
        requests.send((id.clone(), request.clone())).unwrap();
    });
    let answers = blobs.clone();
    thread::spawn(move || {
        let mut count = 0;
        while let Ok((id, request)) = received.recv() {
            for index in 0..u64::from(request.chunks) {
                let offset = request.offset + index * u64::from(request.length);
                let Some(rest) = content.get(offset as usize..).filter(|rest| !rest.is_empty()) else {
                    break;
                };
                let header = BlobChunk {
                    sha256: request.sha256.clone(),
                    offset,
                    total,
                };
                let bytes = &rest[..rest.len().min(request.length as usize)];
                count += 1;
                if keeps(count) {
                    answers.deliver(&id, header.encode(bytes).unwrap()).unwrap();
                    // Twice: repetitions do no harm.
                    answers.deliver(&id, header.encode(bytes).unwrap()).unwrap();
                }
            }
        }
    });
    (blobs, asked)
}

#[test]
fn chunks_over_mqtt_are_asked_for_until_all_are_there() {
    let (bytes, digest) = bundle("1", 60_000, None);
    for keeps in [(|_| true) as Chunks, |count| count % 5 != 0] {
        let (blobs, asked) = sender(bytes.clone(), bytes.len() as u64, keeps);
        let setting = Setting { blobs, ..setting() };
        // Waiting for chunks takes real time here, but silence is judged by a clock that the waits move.
        let spec = spec(&bytes, digest, &["blob fleet"]);
        let ticking = Cell::new(0);
        let (result, _) = setting.fetch_until(&spec, unsigned(), &|| {
            ticking.set(ticking.get() + 1);
            setting.clock.advance(Duration::from_secs(1));
            false
        });
        result.unwrap();
        assert!(setting.has(&spec));
        let asked = asked.lock().unwrap();
        assert_eq!((asked[0].offset, asked[0].length, asked[0].chunks), (0, 1000, 8));
        assert!(asked.len() >= bytes.len() / 8000);
        assert!(asked.windows(2).all(|pair| pair[0].offset <= pair[1].offset));
    }
}

#[test]
fn a_sender_that_is_silent_or_has_another_bundle_is_named() {
    let (bytes, digest) = bundle("1", 5000, None);
    let (blobs, _) = sender(bytes.clone(), 1 << 40, |_| true);
    let setting = Setting { blobs, ..setting() };
    let reason = setting.reason(&spec(&bytes, digest, &["blob fleet"]));
    assert!(
        reason.contains("blob fleet: the bundle there has 1099511627776 bytes"),
        "{reason}"
    );

    let (blobs, asked) = sender(bytes.clone(), 1, |_| false);
    let setting = Setting { blobs, ..setting };
    let (result, waits) = setting.fetch_until(&spec(&bytes, digest, &["blob fleet"]), unsigned(), &|| {
        setting.clock.advance(Duration::from_secs(3));
        asked.lock().unwrap().len() > 4
    });
    assert_eq!(result, Err(FetchError::Superseded));
    assert!(waits.contains("blob fleet: nobody answers"), "{waits}");
}

#[test]
fn without_room_nothing_is_begun() {
    let (bytes, digest) = bundle("1", 5000, None);
    let setting = setting();
    let huge = SlotSpec {
        size: 1 << 60,
        ..spec(&bytes, digest, &["file:/x"])
    };
    assert!(setting.reason(&huge).contains("never fits"));
    assert!(!Path::exists(&setting.store.partial_path(digest)));
}

#[test]
fn authorities_that_cannot_be_read_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ca.pem");
    for content in [None, Some("no certificate")] {
        if let Some(content) = content {
            std::fs::write(&path, content).unwrap();
        }
        let error = HttpClient::new(Some(&path)).unwrap_err().to_string();
        assert!(error.contains("store.ca") && error.contains("ca.pem"), "{error}");
    }
}
