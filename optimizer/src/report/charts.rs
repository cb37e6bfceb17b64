use edgeopt_models::Bytes;

use super::CandidateReport;
use super::svg::{Anchor, Drawing, grid_step, shortened};
use crate::accuracy::LayerSqnr;

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
        .map(|(_, latency)| latency.p90_ms)
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

/// A bar for each layer in the network's order, the lowest five named; none without layers.
pub(super) fn layers(layers: &[LayerSqnr]) -> Option<Drawing> {
    let finite: Vec<&LayerSqnr> = layers.iter().filter(|layer| layer.sqnr_db.is_finite()).collect();
    if finite.is_empty() {
        return None;
    }
    // The band above the bars is for labels, one row each, so that they never overlap.
    let (top, bottom, height) = (92.0, 310.0, 320.0);
    let highest = finite
        .iter()
        .map(|layer| layer.sqnr_db)
        .fold(10.0, f64::max)
        .min(80.0);
    let lowest = finite
        .iter()
        .map(|layer| layer.sqnr_db)
        .fold(0.0, f64::min)
        .max(-20.0);
    let y = |db: f64| bottom - (db.clamp(lowest, highest) - lowest) / (highest - lowest) * (bottom - top);
    let mut drawing = Drawing::new(WIDTH, height, "SQNR of each layer in dB");
    let step = grid_step(highest - lowest, 5.0);
    let mut db = (lowest / step).ceil() * step;
    while db <= highest {
        drawing.line((LEFT, y(db)), (WIDTH - RIGHT, y(db)), "grid");
        drawing.text(LEFT - 6.0, y(db) + 4.0, Anchor::End, "", &format!("{db:.0}"));
        db += step;
    }
    let slot = (WIDTH - LEFT - RIGHT) / finite.len() as f64;
    let mut order: Vec<usize> = (0..finite.len()).collect();
    order.sort_by(|a, b| finite[*a].sqnr_db.total_cmp(&finite[*b].sqnr_db));
    let worst = &order[..order.len().min(5)];
    for (index, layer) in finite.iter().enumerate() {
        let class = if worst.contains(&index) { "bad" } else { "one" };
        let title = format!("{} {}: {:.1} dB", layer.op, layer.node, layer.sqnr_db);
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
        drawing.line((x, baseline - 8.0), (x, y(finite[*index].sqnr_db)), "lead");
        let text = format!(
            "{} {:.1}",
            shortened(&finite[*index].node, 48),
            finite[*index].sqnr_db
        );
        drawing.text(text_x, baseline, anchor, "strong", &text);
    }
    Some(drawing)
}

/// Memory alive over the run, against the limit; none without a timeline.
pub(super) fn memory(timeline: &[(String, Bytes)], limit: Option<Bytes>, weights: Bytes) -> Option<Drawing> {
    let (peak_at, peak) = timeline.iter().enumerate().max_by_key(|(_, (_, bytes))| *bytes)?;
    let total = |bytes: Bytes| (weights + bytes).as_mib();
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
    let mut points: Vec<(f64, f64)> = timeline
        .iter()
        .enumerate()
        .map(|(index, (_, bytes))| (x(index), y(total(*bytes))))
        .collect();
    points.push((WIDTH - RIGHT, y(weights.as_mib())));
    points.push((LEFT, y(weights.as_mib())));
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
    let label = format!("peak {} at {}", weights + peak.1, shortened(&peak.0, 40));
    drawing.text(px, (y(total(peak.1)) - 5.0).max(10.0), anchor, "strong", &label);
    drawing.text(
        LEFT + 4.0,
        bottom - 5.0,
        Anchor::Start,
        "strong",
        &format!("weights {weights}"),
    );
    Some(drawing)
}
