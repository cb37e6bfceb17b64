use std::fs;
use std::mem::offset_of;
use std::path::Path;
use std::process::Command;

use super::*;

/// What a C compiler makes of each of these expressions.
fn by_header(expressions: &[String]) -> Vec<u64> {
    let folder = tempfile::tempdir().unwrap();
    let (source, program) = (folder.path().join("abi.c"), folder.path().join("abi"));
    let lines: String = expressions
        .iter()
        .map(|expression| format!("printf(\"%llu\\n\", (unsigned long long)({expression}));\n"))
        .collect();
    let text = format!(
        "#include <stdio.h>\n#include <stddef.h>\n#include <linux/videodev2.h>\nint main(void) {{\n{lines}return 0;\n}}\n"
    );
    fs::write(&source, text).unwrap();
    let compiled = Command::new("cc")
        .arg(&source)
        .arg("-o")
        .arg(&program)
        .output()
        .unwrap();
    assert!(
        compiled.status.success(),
        "{}",
        String::from_utf8_lossy(&compiled.stderr)
    );
    let printed = Command::new(&program).output().unwrap();
    let text = String::from_utf8(printed.stdout).unwrap();
    text.lines().map(|line| line.parse().unwrap()).collect()
}

#[test]
fn declarations_are_those_of_the_systems_header() {
    // Rust itself links with `cc`; the header comes with the C library's.
    if !Path::new("/usr/include/linux/videodev2.h").exists() {
        eprintln!("not compared: there is no linux/videodev2.h (linux-libc-dev)");
        return;
    }
    let mut expected: Vec<(String, u64)> = Vec::new();
    let mut number = |name: &str, value: u64| expected.push((name.to_owned(), value));
    for (name, opcode) in [
        ("QUERYCAP", QUERYCAP),
        ("ENUM_FMT", ENUM_FMT),
        ("G_FMT", G_FMT),
        ("S_FMT", S_FMT),
        ("REQBUFS", REQBUFS),
        ("QUERYBUF", QUERYBUF),
        ("QBUF", QBUF),
        ("DQBUF", DQBUF),
        ("STREAMON", STREAMON),
        ("STREAMOFF", STREAMOFF),
        ("G_PARM", G_PARM),
        ("S_PARM", S_PARM),
        ("ENUM_FRAMESIZES", ENUM_FRAMESIZES),
        ("ENUM_FRAMEINTERVALS", ENUM_FRAMEINTERVALS),
    ] {
        number(&format!("VIDIOC_{name}"), u64::from(opcode));
    }
    for (name, value) in [
        ("V4L2_BUF_TYPE_VIDEO_CAPTURE", CAPTURE),
        ("V4L2_MEMORY_MMAP", MEMORY_MMAP),
        ("V4L2_FIELD_NONE", FIELD_NONE),
        ("V4L2_PIX_FMT_PRIV_MAGIC", PRIV_MAGIC),
        ("V4L2_CAP_VIDEO_CAPTURE", capability::CAPTURE),
        ("V4L2_CAP_VIDEO_CAPTURE_MPLANE", capability::CAPTURE_MPLANE),
        ("V4L2_CAP_VIDEO_M2M | V4L2_CAP_VIDEO_M2M_MPLANE", capability::M2M),
        ("V4L2_CAP_META_CAPTURE", capability::META_CAPTURE),
        ("V4L2_CAP_STREAMING", capability::STREAMING),
        ("V4L2_CAP_DEVICE_CAPS", capability::DEVICE_CAPS),
        ("V4L2_CAP_TIMEPERFRAME", capability::TIME_PER_FRAME),
        ("V4L2_BUF_FLAG_ERROR", flag::ERROR),
        ("V4L2_BUF_FLAG_TIMESTAMP_MASK", flag::TIMESTAMP_MASK),
        ("V4L2_BUF_FLAG_TIMESTAMP_MONOTONIC", flag::TIMESTAMP_MONOTONIC),
        ("V4L2_FRMSIZE_TYPE_DISCRETE", DISCRETE),
        ("V4L2_FRMIVAL_TYPE_DISCRETE", DISCRETE),
    ] {
        number(name, u64::from(value));
    }
    let mut place = |structure: &str, field: &str, offset: usize| {
        number(&format!("offsetof(struct {structure}, {field})"), offset as u64);
    };
    place("v4l2_capability", "card", offset_of!(Capability, card));
    place(
        "v4l2_capability",
        "capabilities",
        offset_of!(Capability, capabilities),
    );
    place(
        "v4l2_capability",
        "device_caps",
        offset_of!(Capability, device_caps),
    );
    place("v4l2_fmtdesc", "type", offset_of!(FormatDescription, kind));
    place(
        "v4l2_fmtdesc",
        "pixelformat",
        offset_of!(FormatDescription, pixel_format),
    );
    for (field, offset) in [
        ("width", offset_of!(Format, width)),
        ("height", offset_of!(Format, height)),
        ("pixelformat", offset_of!(Format, pixel_format)),
        ("field", offset_of!(Format, field)),
        ("bytesperline", offset_of!(Format, bytes_per_line)),
        ("sizeimage", offset_of!(Format, size_image)),
        ("colorspace", offset_of!(Format, colorspace)),
        ("priv", offset_of!(Format, private)),
        ("ycbcr_enc", offset_of!(Format, ycbcr_encoding)),
        ("quantization", offset_of!(Format, quantization)),
        ("xfer_func", offset_of!(Format, transfer)),
    ] {
        place("v4l2_format", &format!("fmt.pix.{field}"), offset);
    }
    place(
        "v4l2_streamparm",
        "parm.capture.capability",
        offset_of!(StreamParameters, capability),
    );
    let fraction = "parm.capture.timeperframe";
    place(
        "v4l2_streamparm",
        &format!("{fraction}.numerator"),
        offset_of!(StreamParameters, numerator),
    );
    place(
        "v4l2_streamparm",
        &format!("{fraction}.denominator"),
        offset_of!(StreamParameters, denominator),
    );
    place(
        "v4l2_frmsizeenum",
        "pixel_format",
        offset_of!(FrameSize, pixel_format),
    );
    place("v4l2_frmsizeenum", "type", offset_of!(FrameSize, kind));
    place("v4l2_frmsizeenum", "discrete.width", offset_of!(FrameSize, sizes));
    place(
        "v4l2_frmsizeenum",
        "stepwise.max_width",
        offset_of!(FrameSize, sizes) + 4,
    );
    place(
        "v4l2_frmsizeenum",
        "stepwise.min_height",
        offset_of!(FrameSize, sizes) + 12,
    );
    place("v4l2_frmivalenum", "width", offset_of!(FrameInterval, width));
    place("v4l2_frmivalenum", "type", offset_of!(FrameInterval, kind));
    place(
        "v4l2_frmivalenum",
        "discrete.numerator",
        offset_of!(FrameInterval, intervals),
    );
    place(
        "v4l2_frmivalenum",
        "stepwise.max",
        offset_of!(FrameInterval, intervals) + 8,
    );
    place(
        "v4l2_requestbuffers",
        "memory",
        offset_of!(RequestBuffers, memory),
    );
    for (field, offset) in [
        ("type", offset_of!(Buffer, kind)),
        ("bytesused", offset_of!(Buffer, used)),
        ("flags", offset_of!(Buffer, flags)),
        ("timestamp.tv_sec", offset_of!(Buffer, seconds)),
        ("timestamp.tv_usec", offset_of!(Buffer, microseconds)),
        ("sequence", offset_of!(Buffer, sequence)),
        ("memory", offset_of!(Buffer, memory)),
        ("m.offset", offset_of!(Buffer, offset)),
        ("length", offset_of!(Buffer, length)),
    ] {
        place("v4l2_buffer", field, offset);
    }
    for (structure, size) in [
        ("v4l2_capability", size_of::<Capability>()),
        ("v4l2_fmtdesc", size_of::<FormatDescription>()),
        ("v4l2_format", size_of::<Format>()),
        ("v4l2_streamparm", size_of::<StreamParameters>()),
        ("v4l2_frmsizeenum", size_of::<FrameSize>()),
        ("v4l2_frmivalenum", size_of::<FrameInterval>()),
        ("v4l2_requestbuffers", size_of::<RequestBuffers>()),
        ("v4l2_buffer", size_of::<Buffer>()),
    ] {
        number(&format!("sizeof(struct {structure})"), size as u64);
    }
    let (names, ours): (Vec<String>, Vec<u64>) = expected.into_iter().unzip();
    let theirs = by_header(&names);
    assert_eq!(theirs.len(), ours.len());
    for ((name, ours), theirs) in names.iter().zip(ours).zip(theirs) {
        assert_eq!(ours, theirs, "{name}");
    }
}
