//! What the daemon costs: memory and CPU when idle, latency beyond the broker's own, inferences per second.
//!
//! `agent-load EDGEOPT_AGENT [INFERENCES]` starts mosquitto and the daemon, each with a folder of its own, deploys a
//! model of one multiplication (so that everything measured is the daemon's), and prints a table. The same messages sent
//! through the broker and back without the daemon are the base line.

use std::collections::BTreeMap;
use std::fs;
use std::io::Cursor;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use edgeopt_agent::fleet::{Access, BundleFile, Change, DeviceProgress, Operator, Rollout, roll_out};
use edgeopt_agent::protocol::{DeviceId, ModelSource, SlotSpec, Topic};
use edgeopt_models::bundle::{self, Manifest, Member};
use edgeopt_models::{DataType, Dim, Graph, Model, Node, Tensor, ValueInfo, onnx};
use edgeopt_runtime::dataset::write_npz;

const PATIENCE: Duration = Duration::from_secs(20);
/// Inputs under way when throughput is measured; below the slot's queue.
const WINDOW: usize = 64;

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some(agent) = arguments.first() else {
        bail!("usage: agent-load EDGEOPT_AGENT [INFERENCES]");
    };
    let inferences: usize = arguments.get(1).map_or(Ok(20_000), |text| text.parse())?;
    let folder = tempfile::tempdir()?;
    let root = folder.path();

    let (_broker, port) = mosquitto(root)?;
    let bundle_path = tiny_bundle(root)?;
    let mut daemon = daemon(agent, root, port)?;
    let mut operator = connect(port)?;
    let device: DeviceId = "load".parse()?;
    operator.subscribe(&Topic::Status.of(&device))?;
    while operator
        .next(PATIENCE)?
        .is_none_or(|heard| !heard.payload.starts_with(b"{\"online\":true"))
    {}
    thread::sleep(Duration::from_secs(1));
    let resident_idle = field(daemon.0.id(), "VmRSS:")?;
    let before = cpu(daemon.0.id())?;
    thread::sleep(Duration::from_secs(10));
    let idle_cpu = (cpu(daemon.0.id())? - before).as_secs_f64() / 10.0;
    println!(
        "idle, no model      {resident_idle:.1} MiB resident, {:.2} % CPU",
        100.0 * idle_cpu
    );

    deploy(&mut operator, &device, &bundle_path)?;
    println!(
        "with a tiny model   {:.1} MiB resident (most of it ONNX Runtime)",
        field(daemon.0.id(), "VmRSS:")?
    );
    let input = fs::read(root.join("x.npz"))?;
    let slot = "tiny".parse()?;
    let (to, from) = (
        Topic::Input(slot).of(&device),
        Topic::Result("tiny".parse()?).of(&device),
    );

    let mut echo = connect(port)?;
    echo.subscribe("echo")?;
    let mut direct = round_trips(&mut echo, "echo", "echo", &input, 2000)?;
    let mut through = connect(port)?;
    through.subscribe(&from)?;
    let mut served = round_trips(&mut through, &to, &from, &input, 2000)?;
    for (name, times) in [
        ("broker and back", &mut direct),
        ("broker, daemon, broker", &mut served),
    ] {
        times.sort();
        println!(
            "{name:24} {:7.1} µs median, {:7.1} µs p99, {:7.1} µs max",
            at(times, 0.5),
            at(times, 0.99),
            at(times, 1.0)
        );
    }
    println!(
        "the daemon beyond it     {:7.1} µs median, {:7.1} µs p99",
        at(&served, 0.5) - at(&direct, 0.5),
        at(&served, 0.99) - at(&direct, 0.99)
    );

    let (begun, before) = (Instant::now(), cpu(daemon.0.id())?);
    let (mut sent, mut answered) = (0, 0);
    while answered < inferences {
        while sent < inferences && sent - answered < WINDOW {
            through.publish(&to, input.clone(), false)?;
            sent += 1;
        }
        ensure!(
            through.next(PATIENCE)?.is_some(),
            "no result for {} s after {answered} of {sent}",
            PATIENCE.as_secs()
        );
        answered += 1;
    }
    let seconds = begun.elapsed().as_secs_f64();
    println!(
        "sustained            {:.0} inferences/s over {seconds:.1} s, {:.0} % CPU of the daemon, {:.1} MiB resident after",
        inferences as f64 / seconds,
        100.0 * (cpu(daemon.0.id())? - before).as_secs_f64() / seconds,
        field(daemon.0.id(), "VmRSS:")?
    );
    daemon.0.kill()?;
    Ok(())
}

/// A child process that ends with us.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // Gone already: fine.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn mosquitto(root: &Path) -> anyhow::Result<(Process, u16)> {
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let file = root.join("mosquitto.conf");
    fs::write(
        &file,
        format!(
            "listener {port} 127.0.0.1\nallow_anonymous true\nset_tcp_nodelay true\nmax_queued_messages 10000\n"
        ),
    )?;
    let child = Command::new("mosquitto")
        .arg("-c")
        .arg(&file)
        .stderr(Stdio::null())
        .spawn()
        .or_else(|_| Command::new("/usr/sbin/mosquitto").arg("-c").arg(&file).spawn())
        .context("mosquitto does not start: install the package `mosquitto`")?;
    Ok((Process(child), port))
}

fn daemon(program: &str, root: &Path, port: u16) -> anyhow::Result<Process> {
    let shown = root.display();
    let text = format!(
        "device = \"load\"\n[broker]\nhost = \"127.0.0.1\"\nport = {port}\n[spool]\ndirectory = \"{shown}/spool\"\n\
         [store]\ndirectory = \"{shown}/store\"\n[trust]\nrequire_signature = false\n[engine]\nbackend = \"cpu\"\n\
         cache = \"{shown}/cache\"\n[slots.tiny]\ninputs = [{{ kind = \"mqtt\" }}]\nqueue = 256\n"
    );
    let file = root.join("agent.toml");
    fs::write(&file, text)?;
    let log = fs::File::create(root.join("agent.log"))?;
    let child = Command::new(program)
        .arg("-c")
        .arg(&file)
        .stderr(log)
        .spawn()
        .with_context(|| format!("{program} does not start"))?;
    Ok(Process(child))
}

fn connect(port: u16) -> anyhow::Result<Operator> {
    let access = Access {
        host: "127.0.0.1".into(),
        port: Some(port),
        ..Access::default()
    };
    let begun = Instant::now();
    loop {
        match Operator::connect(&access) {
            Ok(operator) => return Ok(operator),
            Err(_) if begun.elapsed() < PATIENCE => thread::sleep(Duration::from_millis(50)),
            Err(error) => return Err(error.into()),
        }
    }
}

fn deploy(operator: &mut Operator, device: &DeviceId, path: &Path) -> anyhow::Result<()> {
    let bundle = BundleFile::open(path)?;
    let rollout = Rollout {
        devices: vec![device.clone()],
        slot: "tiny".parse()?,
        change: Change::Install(SlotSpec {
            model: bundle.manifest.name.clone(),
            version: bundle.manifest.version.clone(),
            sha256: bundle.sha256.clone(),
            size: bundle.size.0,
            sources: vec![ModelSource::Url(format!("file:{}", path.display()))],
        }),
        blob: None,
        wave: 1,
        failures: 0,
        patience: PATIENCE,
        watched: false,
        forget_other_slots: false,
    };
    let end = roll_out(operator, &rollout, &mut |_: &DeviceId, _: &DeviceProgress| {})?;
    ensure!(
        end.failed.is_empty(),
        "the model is not deployed: {:?}",
        end.failed
    );
    Ok(())
}

/// One message at a time: from sending it to hearing the answer.
fn round_trips(
    operator: &mut Operator,
    to: &str,
    from: &str,
    payload: &[u8],
    count: usize,
) -> anyhow::Result<Vec<Duration>> {
    let mut times = Vec::with_capacity(count);
    for round in 0..count + 100 {
        let begun = Instant::now();
        operator.publish(to, payload, false)?;
        let heard = operator.next(PATIENCE)?.context("no answer")?;
        ensure!(heard.topic == from, "an answer on {}", heard.topic);
        // The first ones meet cold caches.
        if round >= 100 {
            times.push(begun.elapsed());
        }
        thread::sleep(Duration::from_micros(500));
    }
    Ok(times)
}

fn at(sorted: &[Duration], share: f64) -> f64 {
    let index = (share * (sorted.len() - 1) as f64).round() as usize;
    sorted[index].as_secs_f64() * 1e6
}

fn tiny_bundle(root: &Path) -> anyhow::Result<std::path::PathBuf> {
    let value = |name: &str| {
        let shape = [Dim::from("N"), Dim::Known(4)].into_iter().collect();
        ValueInfo::tensor(name, DataType::Float32, shape)
    };
    let mut graph = Graph {
        name: "tiny".into(),
        inputs: vec![value("x")],
        outputs: vec![value("y")],
        ..Graph::default()
    };
    graph.add_initializer("k".into(), Tensor::scalar(2.0f32));
    graph.nodes.push(Node::new("Mul", "times", ["x", "k"], ["y"]));
    let npz = |name: &str, values: [f32; 4]| -> anyhow::Result<Vec<u8>> {
        let mut bytes = Cursor::new(Vec::new());
        write_npz(&mut bytes, &[(name, &Tensor::new(&[1, 4], &values)?)])?;
        Ok(bytes.into_inner())
    };
    let x = [1.0f32, 2.0, 3.0, 4.0];
    fs::write(root.join("x.npz"), npz("x", x)?)?;
    let members = BTreeMap::from([
        (
            bundle::MODEL.to_owned(),
            Member::Data(onnx::write_bytes(&Model::new(graph, 21))?),
        ),
        ("golden/0-inputs.npz".to_owned(), Member::Data(npz("x", x)?)),
        (
            "golden/0-outputs.npz".to_owned(),
            Member::Data(npz("y", x.map(|x| 2.0 * x))?),
        ),
    ]);
    let tensor = |name| {
        serde_json::json!({
            "name": name, "dtype": "float32", "shape": [{"name": "N", "min": 1, "opt": 4, "max": 8}, 4]
        })
    };
    let manifest: Manifest = serde_json::from_value(serde_json::json!({
        "format": "1.0", "name": "tiny", "version": "1", "precision": "fp32",
        "inputs": [tensor("x")], "outputs": [tensor("y")],
        "memory": [{"batch": 8, "weights": 4, "activations": 128, "io": 256}],
        "provenance": {"source": "tiny.onnx", "source_sha256": "0".repeat(64), "tool": "agent-load", "options": {}},
        "members": {},
    }))?;
    let path = root.join("tiny.edge");
    bundle::pack(manifest, &members, None, &path)?;
    Ok(path)
}

/// A field in kB of a process, in MiB.
fn field(process: u32, name: &str) -> anyhow::Result<f64> {
    let text = fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let kib: f64 = line
        .and_then(|line| line.trim().strip_suffix("kB"))
        .context("no such field")?
        .trim()
        .parse()?;
    Ok(kib / 1024.0)
}

/// CPU time that a process has used, all threads together.
fn cpu(process: u32) -> anyhow::Result<Duration> {
    let text = fs::read_to_string(format!("/proc/{process}/stat"))?;
    // Behind the name, which may hold blanks: user and system time are the 12th and 13th field, in ticks of 10 ms.
    let rest = text.rsplit(')').next().context("no name")?;
    let ticks: Vec<u64> = rest
        .split_whitespace()
        .skip(11)
        .take(2)
        .map(str::parse)
        .collect::<Result<_, _>>()?;
    Ok(Duration::from_millis(10 * ticks.iter().sum::<u64>()))
}
