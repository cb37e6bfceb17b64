//! Metrics in the text format of OpenMetrics 1.0, which Prometheus scrapes.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};

use crate::daemon::overview::{Observer, Overview, SlotOverview};
use crate::inputs::camera::CameraView;
use crate::protocol::{CameraState, EngineState};
use crate::serve::{Health, LATENCY_BOUNDS_MS};

/// The content type of the format.
pub(super) const CONTENT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// All metrics now.
pub(super) fn render(observer: &Arc<Observer>) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix("edgeopt");
    registry.register_collector(Box::new(Source(Arc::clone(observer))));
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

struct Source(Arc<Observer>);

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Source")
    }
}

impl Collector for Source {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let overview = self.0.look();
        let (link, spool, memory) = (&overview.link, &overview.spool, &overview.memory);
        for (name, help, unit, value) in [
            (
                "link_connected",
                "Whether the broker is connected",
                None,
                u64::from(link.connected),
            ),
            (
                "link_alarms",
                "Things about the link that need attention",
                None,
                link.alarms.len() as u64,
            ),
            (
                "threads_hanging",
                "Threads without progress",
                None,
                overview.hanging.len() as u64,
            ),
            (
                "spool_waiting_records",
                "Messages that wait for the broker",
                None,
                spool.waiting,
            ),
            ("spool_size", "The spool on disk", Some(Unit::Bytes), spool.bytes),
            (
                "memory_resident",
                "Resident memory of the daemon",
                Some(Unit::Bytes),
                memory.resident,
            ),
            (
                "memory_available",
                "Memory the system can give",
                Some(Unit::Bytes),
                memory.available,
            ),
            (
                "memory_models_reserved",
                "Memory reserved by models",
                Some(Unit::Bytes),
                memory.reserved,
            ),
            (
                "memory_models_limit",
                "Memory models may take",
                Some(Unit::Bytes),
                memory.limit,
            ),
        ] {
            // Far below 2^63.
            let gauge = ConstGauge::new(value as i64);
            gauge.encode(encoder.encode_descriptor(name, help, unit.as_ref(), gauge.metric_type())?)?;
        }
        for (name, help, value) in [
            (
                "link_connects",
                "Connections accepted by the broker",
                link.connects,
            ),
            (
                "link_acknowledged",
                "Messages acknowledged by the broker",
                link.acknowledged,
            ),
            ("link_received", "Messages from the broker", link.received),
            (
                "spool_dropped",
                "Results given up for room or age since the spool was created",
                spool.dropped,
            ),
            (
                "messages_oversize",
                "Messages too large to be sent",
                spool.oversize,
            ),
        ] {
            let counter = ConstCounter::new(value);
            counter.encode(encoder.encode_descriptor(name, help, None, counter.metric_type())?)?;
        }
        slots(&mut encoder, &self.0.health())?;
        type Value = fn(&SlotOverview) -> u64;
        let gauges: [(&str, &str, Option<Unit>, Value); 4] = [
            ("slot_waiting_inputs", "Inputs that wait", None, |slot| {
                slot.waiting as u64
            }),
            (
                "slot_engine_build",
                "How long the engine's build under way has taken; 0 without one",
                Some(Unit::Seconds),
                |slot| slot.build.map_or(0, |build| build.elapsed_s.max(1)),
            ),
            (
                "slot_engine_build_steps",
                "Steps done of the engine's build under way",
                None,
                |slot| slot.build.map_or(0, |build| build.steps),
            ),
            (
                "slot_engine_failed",
                "Whether the engine cannot be built or misbehaved, and another backend answers",
                None,
                |slot| {
                    let engine = slot.reported.engine.as_ref();
                    u64::from(engine.is_some_and(|engine| engine.state == EngineState::Failed))
                },
            ),
        ];
        for (name, help, unit, value) in gauges {
            let mut family = encoder.encode_descriptor(name, help, unit.as_ref(), MetricType::Gauge)?;
            for (slot, state) in &overview.slots {
                let labels = [("slot", slot.as_str())];
                let gauge = ConstGauge::new(value(state) as i64);
                gauge.encode(family.encode_family(&labels)?)?;
            }
        }
        let mut backends = encoder.encode_descriptor(
            "slot_backend",
            "What executes the model that answers",
            None,
            MetricType::Gauge,
        )?;
        for (slot, state) in &overview.slots {
            if let Some(backend) = &state.reported.backend {
                let labels = [("slot", slot.as_str()), ("backend", backend.as_str())];
                ConstGauge::new(1i64).encode(backends.encode_family(&labels)?)?;
            }
        }
        cameras(&mut encoder, &overview)
    }
}

fn cameras(encoder: &mut DescriptorEncoder<'_>, overview: &Overview) -> Result<(), fmt::Error> {
    let cameras: Vec<_> = overview
        .slots
        .iter()
        .filter_map(|(slot, state)| Some((slot.as_str(), state.camera.as_ref()?)))
        .collect();
    if cameras.is_empty() {
        return Ok(());
    }
    type Value = fn(&CameraView) -> Option<f64>;
    let gauges: [(&str, &str, Option<Unit>, Value); 3] = [
        (
            "camera_streaming",
            "Whether the camera gives frames",
            None,
            |view| Some(f64::from(u8::from(view.camera.state == CameraState::Streaming))),
        ),
        ("camera_frame_rate", "Frames per second", None, |view| {
            Some(view.camera.fps)
        }),
        (
            "camera_frame_age",
            "Since the last good frame was captured",
            Some(Unit::Seconds),
            |view| view.age_ms.map(|age| age as f64 / 1e3),
        ),
    ];
    for (name, help, unit, value) in gauges {
        let mut family = encoder.encode_descriptor(name, help, unit.as_ref(), MetricType::Gauge)?;
        for (slot, view) in &cameras {
            if let Some(value) = value(view) {
                ConstGauge::new(value).encode(family.encode_family(&[("slot", *slot)])?)?;
            }
        }
    }
    type Count = fn(&CameraView) -> u64;
    let counters: [(&str, &str, Count); 4] = [
        ("camera_taken", "Frames given to a model", |view| {
            view.camera.taken
        }),
        ("camera_skipped", "Good frames given to no model", |view| {
            view.camera.skipped
        }),
        ("camera_bad", "Frames damaged or cut off", |view| view.camera.bad),
        (
            "camera_lost",
            "Frames counted by the driver and never given",
            |view| view.camera.lost,
        ),
    ];
    for (name, help, count) in counters {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (slot, view) in &cameras {
            ConstCounter::new(count(view)).encode(family.encode_family(&[("slot", *slot)])?)?;
        }
    }
    Ok(())
}

fn slots(
    encoder: &mut DescriptorEncoder<'_>,
    slots: &[(crate::protocol::SlotName, Health)],
) -> Result<(), fmt::Error> {
    type Count = fn(&Health) -> u64;
    let counters: [(&str, &str, Count); 4] = [
        ("slot_answers", "Answers", |health| health.answered),
        ("slot_failures", "Inputs that could not be answered", |health| {
            health.failed
        }),
        (
            "slot_non_finite",
            "Answers with NaN or infinity that no golden output holds",
            |health| health.non_finite,
        ),
        (
            "slot_dropped",
            "Inputs given up because the queue was full",
            |health| health.dropped,
        ),
    ];
    for (name, help, count) in counters {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (slot, health) in slots {
            let labels = [("slot", slot.as_str())];
            ConstCounter::new(count(health)).encode(family.encode_family(&labels)?)?;
        }
    }
    let mut family = encoder.encode_descriptor(
        "slot_latency",
        "From input to answer",
        Some(&Unit::Seconds),
        MetricType::Histogram,
    )?;
    for (slot, health) in slots {
        let labels = [("slot", slot.as_str())];
        let bounds = LATENCY_BOUNDS_MS
            .iter()
            .map(|bound| bound / 1e3)
            .chain([f64::INFINITY]);
        let buckets: Vec<(f64, u64)> = bounds.zip(health.latency_counts).collect();
        family
            .encode_family(&labels)?
            .encode_histogram::<[(&str, &str); 0]>(
                health.latency_sum_ms / 1e3,
                health.answered,
                &buckets,
                None,
            )?;
    }
    Ok(())
}
