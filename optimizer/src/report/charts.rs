use edgeopt_models::Bytes;

use super::CandidateReport;
use super::svg::{Anchor, Drawing, grid_step, shortened};
use crate::accuracy::{LayerSqnr, rank};

const WIDTH: f64 = 900.0;
const LEFT: f64 = 48.0;
const RIGHT: f64 = 12.0;

/// Bars of median and 90th percentile for each candidate; none if nothing was timed.
pub(super) fn latency(candidates: &[CandidateReport]) -> Option<Drawing> {
    let timed: Vec<_> = candidates
        .iter()
        .filter_map(|c| Some((&c.precision, c.latency?)))
        .collect();
    let longest = timed
        .iter()
        .flat_map(|(_, latency)| [latency.median_ms, latency.p90_ms])
        .filter(|ms| ms.is_finite())
        .fold(0.0, f64::max);
    if longest <= 0.0 {
        return None;
    }
    let row = 44.0;
    let mut drawing = Drawing::new(
        WIDTH,
        row * timed.len() as f64 + 4.0,
        "Latency per precision in milliseconds",
    );
    let scale = (WIDTH - LEFT - 90.0) / longest;
    for (index, (precision, latency)) in timed.iter().enumerate() {
        let y = row * index as f64 + 6.0;
        drawing.text(LEFT - 8.0, y + 20.0, Anchor::End, "strong", precision);
        for (offset, ms, class, label) in [
            (0.0, latency.median_ms, "one", "median"),
            (16.0, latency.p90_ms, "two", "p90"),
        ] {
            if !ms.is_finite() {
                let text = format!("{label} is not a number");
                drawing.text(LEFT + 6.0, y + offset + 10.5, Anchor::Start, "", &text);
                continue;
            }
            let title = format!("{precision} {label}: {ms:.3} ms over {} runs", latency.runs);
            drawing.bar(LEFT, y + offset, ms * scale, 13.0, class, &title);
            drawing.text(
                LEFT + ms * scale + 6.0,
                y + offset + 10.5,
                Anchor::Start,
                "",
                &format!("{ms:.2} {label}"),
            );
        }
    }
    Some(drawing)
}

/// A bar for each layer in the network's order, the lowest five named, those that are no number before all others; none
/// without layers.
pub(super) fn layers(layers: &[LayerSqnr]) -> Option<Drawing> {
    if layers.is_empty() {
        return None;
    }
    let finite = || {
        layers
            .iter()
            .map(|layer| layer.sqnr_db)
            .filter(|db| db.is_finite())
    };
    let said = |db: f64| {
        if db.is_finite() {
            format!("{db:.1}")
        } else {
            "not a number".to_owned()
        }
    };
    // The band above the bars is for labels, one row each, so that they never overlap.
    let (top, bottom, height) = (92.0, 310.0, 320.0);
    let highest = finite().fold(10.0, f64::max).min(80.0);
    let lowest = finite().fold(0.0, f64::min).max(-20.0);
    // What is no number stands as high as the chart, so that it is seen.
    let height_of = |db: f64| {
        if db.is_finite() {
            db.clamp(lowest, highest)
        } else {
            highest
        }
    };
    let y = |db: f64| bottom - (height_of(db) - lowest) / (highest - lowest) * (bottom - top);
    let mut drawing = Drawing::new(WIDTH, height, "SQNR of each layer in dB");
    let step = grid_step(highest - lowest, 5.0);
    let mut db = (lowest / step).ceil() * step;
    while db <= highest {
        drawing.line((LEFT, y(db)), (WIDTH - RIGHT, y(db)), "grid");
        drawing.text(LEFT - 6.0, y(db) + 4.0, Anchor::End, "", &format!("{db:.0}"));
        db += step;
    }
    let slot = (WIDTH - LEFT - RIGHT) / layers.len() as f64;
    let mut order: Vec<usize> = (0..layers.len()).collect();
    order.sort_by(|a, b| rank(layers[*a].sqnr_db).total_cmp(&rank(layers[*b].sqnr_db)));
    let worst = &order[..order.len().min(5)];
    for (index, layer) in layers.iter().enumerate() {
        let class = if worst.contains(&index) { "bad" } else { "one" };
        let title = format!("{} {}: {} dB", layer.op, layer.node, said(layer.sqnr_db));
        let (x, peak) = (LEFT + slot * index as f64, y(layer.sqnr_db));
        drawing.bar(x, peak, (slot * 0.8).max(0.5), bottom - peak, class, &title);
    }
    let mut labelled = worst.to_vec();
    labelled.sort_unstable();
    for (row, index) in labelled.iter().enumerate() {
        let x = LEFT + slot * (*index as f64 + 0.4);
        let baseline = 12.0 + 15.0 * row as f64;
        let (anchor, text_x) = if x > WIDTH * 0.66 {
            (Anchor::End, x - 4.0)
        } else {
            (Anchor::Start, x + 4.0)
        };
        drawing.line((x, baseline - 8.0), (x, y(layers[*index].sqnr_db)), "lead");
        let layer = &layers[*index];
        let text = format!("{} {}", shortened(&layer.node, 48), said(layer.sqnr_db));
        drawing.text(text_x, baseline, anchor, "strong", &text);
    }
    Some(drawing)
}

/// Memory alive over the run on top of what is held all the time, against the limit; none without a timeline.
pub(super) fn memory(
    timeline: &[(String, Bytes)],
    limit: Option<Bytes>,
    weights: Bytes,
    io: Bytes,
) -> Option<Drawing> {
    let (peak_at, peak) = timeline.iter().enumerate().max_by_key(|(_, (_, bytes))| *bytes)?;
    let held = weights + io;
    let total = |bytes: Bytes| (held + bytes).as_mib();
    let highest = total(peak.1)
        .max(limit.map_or(0.0, Bytes::as_mib))
        .max(f64::MIN_POSITIVE)
        * 1.08;
    let (top, bottom, height) = (12.0, 216.0, 228.0);
    let y = |mib: f64| bottom - mib / highest * (bottom - top);
    let x = |index: usize| LEFT + (WIDTH - LEFT - RIGHT) * index as f64 / (timeline.len().max(2) - 1) as f64;
    let mut drawing = Drawing::new(WIDTH, height, "Memory over one run in MiB");
    let step = grid_step(highest, 5.0);
    let mut mib = 0.0;
    while mib <= highest {
        drawing.line((LEFT, y(mib)), (WIDTH - RIGHT, y(mib)), "grid");
        let digits = usize::from(step < 1.0) * 2;
        drawing.text(
            LEFT - 6.0,
            y(mib) + 4.0,
            Anchor::End,
            "",
            &format!("{mib:.digits$}"),
        );
        mib += step;
    }
    drawing.bar(
        LEFT,
        y(weights.as_mib()),
        WIDTH - LEFT - RIGHT,
        bottom - y(weights.as_mib()),
        "two",
        &format!("weights {weights}"),
    );
    drawing.bar(
        LEFT,
        y(held.as_mib()),
        WIDTH - LEFT - RIGHT,
        y(weights.as_mib()) - y(held.as_mib()),
        "io",
        &format!("inputs and outputs {io}"),
    );
    let mut points: Vec<(f64, f64)> = timeline
        .iter()
        .enumerate()
        .map(|(index, (_, bytes))| (x(index), y(total(*bytes))))
        .collect();
    points.push((WIDTH - RIGHT, y(held.as_mib())));
    points.push((LEFT, y(held.as_mib())));
    drawing.area(&points, "area");
    if let Some(limit) = limit {
        drawing.line(
            (LEFT, y(limit.as_mib())),
            (WIDTH - RIGHT, y(limit.as_mib())),
            "limit",
        );
        drawing.text(
            WIDTH - RIGHT,
            y(limit.as_mib()) - 5.0,
            Anchor::End,
            "strong",
            &format!("limit {limit}"),
        );
    }
    let px = x(peak_at);
    let anchor = if px > WIDTH * 0.6 {
        Anchor::End
    } else {
        Anchor::Start
    };
    let label = format!("peak {} at {}", held + peak.1, shortened(&peak.0, 40));
    drawing.text(px, (y(total(peak.1)) - 5.0).max(10.0), anchor, "strong", &label);
    drawing.text(
        LEFT + 4.0,
        bottom - 5.0,
        Anchor::Start,
        "strong",
        &format!("weights {weights}, inputs and outputs {io}"),
    );
    Some(drawing)
}
