use super::*;

fn layers(count: usize) -> Vec<LayerSqnr> {
    (0..count)
        .map(|index| LayerSqnr {
            node: format!("/model/backbone/stage{}/block{index}/conv/Conv_output", index % 4),
            op: "Conv".into(),
            tensor: format!("t{index}"),
            sqnr_db: 25.0 + (index as f64 * 0.7).sin() * 12.0,
        })
        .collect()
}

fn sample() -> Report {
    let candidate = |precision: &str, mib: u64, ms: f64| CandidateReport {
        precision: precision.into(),
        weights: Bytes::mib(mib),
        memory: Some(Bytes::mib(mib + 8)),
        nodes: 100,
        latency: Some(Latency {
            median_ms: ms,
            p90_ms: ms * 1.2,
            runs: 30,
        }),
        outputs: vec![OutputAccuracy {
            name: "y".into(),
            sqnr_db: 31.4,
            cosine: 0.9998,
            max_abs: 0.02,
        }],
        score: Some(Score {
            metric: "top-1 accuracy".into(),
            value: 0.991,
            samples: 500,
            others: Vec::new(),
        }),
    };
    Report {
        title: "digits 3".into(),
        facts: vec![("Source".into(), "digits.onnx".into())],
        memory_limit: Some(Bytes::mib(24)),
        batch: 4,
        io: Bytes::mib(3),
        candidates: vec![candidate("fp32", 40, 12.0), candidate("int8", 10, 6.0)],
        layers: layers(120),
        timeline: (0..60)
            .map(|i| (format!("node{i}"), Bytes::kib(1000 + (i * 37 % 23) * 300)))
            .collect(),
        passes: vec![PassCount {
            pass: "conv-batch-norm".into(),
            changes: 53,
        }],
        kept: vec![KeptNode {
            node: "head".into(),
            op: "Conv".into(),
            reason: "last convolution".into(),
        }],
        warnings: vec!["int8 is slower than fp32".into()],
    }
}

#[test]
fn every_part_is_there_and_the_last_candidate_is_marked() {
    let page = render_html(&sample());
    for part in [
        "<title>digits 3",
        "Precisions side by side",
        "top-1 accuracy",
        "99.10 %",
        "Latency where it was built",
        "Where the error comes from",
        "Memory over one run",
        "limit 24.0 MiB",
        "conv-batch-norm",
        "last convolution",
        "int8 is slower than fp32",
    ] {
        assert!(page.contains(part), "{part}");
    }
    assert_eq!(page.matches("class=\"chosen\"").count(), 1);
    assert_eq!(page.matches("<rect class=\"bad\"").count(), 5);
    assert_eq!(page.matches("<svg").count(), 3);
    if let Some(path) = std::env::var_os("EDGEOPT_WRITE_SAMPLE_REPORT") {
        std::fs::write(path, page).unwrap();
    }
}

#[test]
fn names_from_a_model_cannot_become_markup() {
    let mut report = sample();
    let hostile = "</title><script>alert(1)</script>";
    report.title = hostile.into();
    report.layers[3].node = hostile.into();
    report.layers[3].sqnr_db = -5.0;
    report.timeline[0] = (hostile.into(), Bytes::mib(500));
    report.kept[0].node = hostile.into();
    report.warnings.push(hostile.into());
    let page = render_html(&report);
    assert!(!page.contains("<script"), "a name became markup");
    assert!(page.contains("&lt;script"));
}

#[test]
fn nothing_to_show_and_numbers_that_are_none_do_not_break_the_page() {
    let page = render_html(&Report::default());
    assert!(page.contains("</html>") && !page.contains("<svg"));
    let mut report = sample();
    report.layers[0].sqnr_db = f64::NAN;
    report.layers.truncate(1);
    report.candidates[0].latency = Some(Latency {
        median_ms: f64::NAN,
        p90_ms: f64::NAN,
        runs: 0,
    });
    report.timeline.truncate(1);
    let page = render_html(&report);
    // The chart of the only layer says so; in attributes and coordinates there is none.
    assert!(page.contains("block0/conv/Conv_output not a number"), "{page}");
    assert!(
        !page.contains("NaN\"") && !page.contains("NaN,") && !page.contains("inf"),
        "{page}"
    );
    assert!(page.contains("median is not a number") && page.contains("p90 is not a number"));
    assert_eq!(page.matches("ms over 30 runs").count(), 2);
    report.layers = layers(500);
    assert_eq!(
        render_html(&report).matches("<rect class=\"one\"").count() + 5,
        500 + 1
    );
}

#[test]
fn an_output_that_is_no_number_is_the_worst_and_said_to_be() {
    let mut report = sample();
    let good = report.candidates[1].outputs[0].clone();
    for sign in [1.0, -1.0] {
        report.candidates[1].outputs = vec![
            good.clone(),
            OutputAccuracy {
                name: "z".into(),
                sqnr_db: f64::NAN.copysign(sign),
                cosine: f64::NAN,
                max_abs: f64::INFINITY,
            },
            good.clone(),
        ];
        let page = render_html(&report);
        assert!(
            page.contains("<td class=\"n\">NaN</td><td class=\"n\">NaN</td>"),
            "{page}"
        );
        assert!(page.contains("NaN: there is no number"));
    }
    assert!(!render_html(&sample()).contains("NaN"));
    report.layers[60].sqnr_db = f64::NAN;
    let page = render_html(&report);
    assert_eq!(page.matches("<rect class=\"bad\"").count(), 5);
    let listed = page.find("<summary>The twenty layers").unwrap();
    let first = page[listed..].find("block60/").unwrap();
    assert!(
        page[listed..].find("block").unwrap() == first,
        "block60 stands first"
    );
}

#[test]
fn memory_shows_inputs_and_outputs_and_the_batch_it_was_planned_for() {
    let page = render_html(&sample());
    assert!(page.contains("while each node runs, batch 4."));
    assert!(page.contains("inputs and outputs 3.00 MiB"));
    let highest = sample().timeline.iter().map(|(_, bytes)| *bytes).max().unwrap();
    let peak = Bytes::mib(10) + Bytes::mib(3) + highest;
    assert!(page.contains(&format!("peak {peak} at")), "{page}");
}
