use std::fmt::Write;
use std::process::ExitCode;

use edgeopt_models::Bytes;
use edgeopt_runtime::Backend;
use edgeopt_runtime::backends::cpu::CpuBackend;
use edgeopt_runtime::backends::tensorrt::{Library, Places, TensorRtBackend};
use edgeopt_runtime::memory::Budget;
use serde::Serialize;

use crate::screen::{BAD, BOLD, GOOD, Screen, WARN};

/// Says what this machine can run, what was looked for, and what is missing.
#[derive(clap::Args)]
pub(crate) struct Arguments {}

#[derive(Serialize)]
struct Findings {
    processor: Processor,
    /// What a model may take: the least of available memory and the control group's limit.
    memory_available: Option<Bytes>,
    backends: Vec<BackendFinding>,
}

#[derive(Serialize)]
struct Processor {
    architecture: &'static str,
    threads: usize,
    /// Instructions that matter for INT8 and FP16 speed.
    features: Vec<&'static str>,
    note: Option<&'static str>,
}

#[derive(Serialize)]
struct BackendFinding {
    name: &'static str,
    usable: bool,
    detail: String,
}

pub(crate) fn run(_: &Arguments, screen: &Screen) -> anyhow::Result<ExitCode> {
    let cpu = match CpuBackend::new() {
        Ok(backend) => BackendFinding {
            name: "cpu",
            usable: true,
            detail: backend.description(),
        },
        Err(error) => BackendFinding {
            name: "cpu",
            usable: false,
            detail: error.to_string(),
        },
    };
    let not_built = |name| BackendFinding {
        name,
        usable: false,
        detail: format!("this version of edgeopt has no {name} backend yet"),
    };
    let findings = Findings {
        processor: processor(),
        memory_available: Budget::for_system(None).map(|budget| budget.limit()),
        backends: vec![cpu, not_built("cuda"), tensorrt()],
    };
    screen.result(&findings, show)?;
    let usable = findings.backends.iter().any(|backend| backend.usable);
    Ok(if usable {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// TensorRT is usable for building with its library and plugin, for running with a GPU as well.
fn tensorrt() -> BackendFinding {
    let (usable, detail) = match Library::find(None, &Places::usual()) {
        Err(error) => (false, error.to_string()),
        Ok(library) => {
            let found = format!("{library:?}, plugin {}", library.plugin.display());
            match TensorRtBackend::new(&Places::usual(), None) {
                Ok(backend) => (true, backend.description()),
                Err(error) => (
                    false,
                    format!("{found}: builds engines, but does not run them here: {error}"),
                ),
            }
        }
    };
    BackendFinding {
        name: "tensorrt",
        usable,
        detail,
    }
}

#[cfg(target_arch = "x86_64")]
fn processor() -> Processor {
    let found = [
        ("avx2", is_x86_feature_detected!("avx2")),
        ("f16c", is_x86_feature_detected!("f16c")),
        ("avx512f", is_x86_feature_detected!("avx512f")),
        ("avx512vnni", is_x86_feature_detected!("avx512vnni")),
        ("avxvnni", is_x86_feature_detected!("avxvnni")),
    ];
    let has_vnni = found[3].1 || found[4].1;
    Processor {
        architecture: std::env::consts::ARCH,
        threads: std::thread::available_parallelism().map_or(1, Into::into),
        features: found
            .iter()
            .filter(|(_, present)| *present)
            .map(|(name, _)| *name)
            .collect(),
        note: (!has_vnni).then_some("without VNNI, INT8 gains less over FP32 here than on the device"),
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn processor() -> Processor {
    Processor {
        architecture: std::env::consts::ARCH,
        threads: std::thread::available_parallelism().map_or(1, Into::into),
        features: Vec::new(),
        note: None,
    }
}

fn show(findings: &Findings) -> String {
    let mut text = String::new();
    let processor = &findings.processor;
    // Writing to a String does not fail.
    let _ = writeln!(
        text,
        "{BOLD}processor{BOLD:#}  {}, {} threads {}",
        processor.architecture,
        processor.threads,
        processor.features.join(" ")
    );
    if let Some(note) = processor.note {
        let _ = writeln!(text, "           {WARN}{note}{WARN:#}");
    }
    let memory = findings
        .memory_available
        .map_or("unknown".to_owned(), |bytes| format!("{bytes} available"));
    let _ = writeln!(text, "{BOLD}memory{BOLD:#}     {memory}");
    for backend in &findings.backends {
        let mark = if backend.usable {
            format!("{GOOD}✓{GOOD:#}")
        } else {
            format!("{BAD}✗{BAD:#}")
        };
        let _ = writeln!(
            text,
            "{BOLD}{:10}{BOLD:#} {mark} {}",
            backend.name, backend.detail
        );
    }
    text
}
