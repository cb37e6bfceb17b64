//! JPEG images as cameras send them: without Huffman tables, padded, or cut off. Pure.

use std::borrow::Cow;

use edgeopt_runtime::pipeline::preprocess;
use image::RgbImage;

/// Second bytes of markers.
const START: u8 = 0xD8;
const END: u8 = 0xD9;
const HUFFMAN_TABLES: u8 = 0xC4;
const SCAN: u8 = 0xDA;

/// Decodes a frame.
///
/// # Errors
/// When it is cut off or no JPEG.
pub(super) fn decode(bytes: &[u8]) -> Result<RgbImage, String> {
    let bytes = with_tables(whole(bytes)?)?;
    preprocess::decode_bytes(&bytes).map_err(|error| error.to_string())
}

/// The image without what some drivers append. A decoder would fill a missing end with grey and say nothing.
pub(super) fn whole(bytes: &[u8]) -> Result<&[u8], String> {
    if !bytes.starts_with(&[0xFF, START]) {
        return Err("it does not begin as a JPEG image".into());
    }
    // Within the data of a scan 0xFF is always followed by 0 or a restart marker.
    let end = bytes.windows(2).rposition(|pair| pair == [0xFF, END]);
    match end {
        Some(end) => Ok(&bytes[..end + 2]),
        None => Err(format!(
            "the JPEG image ends after {} bytes without its end",
            bytes.len()
        )),
    }
}

/// The image with Huffman tables: those of the standard, where it brings none, as Motion JPEG has it.
fn with_tables(bytes: &[u8]) -> Result<Cow<'_, [u8]>, String> {
    let mut at = 2;
    loop {
        let Some(&[0xFF, marker, high, low]) = bytes.get(at..at + 4) else {
            return Err(format!(
                "the JPEG image has no marker at byte {at}, where one must be"
            ));
        };
        match marker {
            HUFFMAN_TABLES => return Ok(Cow::Borrowed(bytes)),
            SCAN => break,
            // A fill byte.
            0xFF => at += 1,
            _ => at += 2 + usize::from(u16::from_be_bytes([high, low])),
        }
    }
    let (before, scan) = bytes.split_at(at);
    Ok(Cow::Owned([before, &tables(), scan].concat()))
}

/// Class and number, lengths and values of a table.
type Table = (u8, [u8; 16], &'static [u8]);

/// ITU-T T.81, annex K.3: tables K.3 to K.6, as a segment.
fn tables() -> Vec<u8> {
    let tables: [Table; 4] = [
        (0x00, DC_LUMA_LENGTHS, &DC_VALUES),
        (0x10, AC_LUMA_LENGTHS, &AC_LUMA_VALUES),
        (0x01, DC_CHROMA_LENGTHS, &DC_VALUES),
        (0x11, AC_CHROMA_LENGTHS, &AC_CHROMA_VALUES),
    ];
    let mut segment = vec![0xFF, HUFFMAN_TABLES, 0, 0];
    for (class, lengths, values) in tables {
        segment.push(class);
        segment.extend(lengths);
        segment.extend(values);
    }
    // 418: far below 2^16.
    let length = (segment.len() - 2) as u16;
    segment[2..4].copy_from_slice(&length.to_be_bytes());
    segment
}

const DC_LUMA_LENGTHS: [u8; 16] = [0, 1, 5, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0];
const DC_CHROMA_LENGTHS: [u8; 16] = [0, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0];
const DC_VALUES: [u8; 12] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11];
const AC_LUMA_LENGTHS: [u8; 16] = [0, 2, 1, 3, 3, 2, 4, 3, 5, 5, 4, 4, 0, 0, 1, 0x7D];
const AC_CHROMA_LENGTHS: [u8; 16] = [0, 2, 1, 2, 4, 4, 3, 4, 7, 5, 4, 4, 0, 1, 2, 0x77];
#[rustfmt::skip]
const AC_LUMA_VALUES: [u8; 162] = [
    0x01, 0x02, 0x03, 0x00, 0x04, 0x11, 0x05, 0x12, 0x21, 0x31, 0x41, 0x06, 0x13, 0x51, 0x61, 0x07, 0x22, 0x71,
    0x14, 0x32, 0x81, 0x91, 0xA1, 0x08, 0x23, 0x42, 0xB1, 0xC1, 0x15, 0x52, 0xD1, 0xF0, 0x24, 0x33, 0x62, 0x72,
    0x82, 0x09, 0x0A, 0x16, 0x17, 0x18, 0x19, 0x1A, 0x25, 0x26, 0x27, 0x28, 0x29, 0x2A, 0x34, 0x35, 0x36, 0x37,
    0x38, 0x39, 0x3A, 0x43, 0x44, 0x45, 0x46, 0x47, 0x48, 0x49, 0x4A, 0x53, 0x54, 0x55, 0x56, 0x57, 0x58, 0x59,
    0x5A, 0x63, 0x64, 0x65, 0x66, 0x67, 0x68, 0x69, 0x6A, 0x73, 0x74, 0x75, 0x76, 0x77, 0x78, 0x79, 0x7A, 0x83,
    0x84, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8A, 0x92, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99, 0x9A, 0xA2, 0xA3,
    0xA4, 0xA5, 0xA6, 0xA7, 0xA8, 0xA9, 0xAA, 0xB2, 0xB3, 0xB4, 0xB5, 0xB6, 0xB7, 0xB8, 0xB9, 0xBA, 0xC2, 0xC3,
    0xC4, 0xC5, 0xC6, 0xC7, 0xC8, 0xC9, 0xCA, 0xD2, 0xD3, 0xD4, 0xD5, 0xD6, 0xD7, 0xD8, 0xD9, 0xDA, 0xE1, 0xE2,
    0xE3, 0xE4, 0xE5, 0xE6, 0xE7, 0xE8, 0xE9, 0xEA, 0xF1, 0xF2, 0xF3, 0xF4, 0xF5, 0xF6, 0xF7, 0xF8, 0xF9, 0xFA,
];
#[rustfmt::skip]
const AC_CHROMA_VALUES: [u8; 162] = [
    0x00, 0x01, 0x02, 0x03, 0x11, 0x04, 0x05, 0x21, 0x31, 0x06, 0x12, 0x41, 0x51, 0x07, 0x61, 0x71, 0x13, 0x22,
    0x32, 0x81, 0x08, 0x14, 0x42, 0x91, 0xA1, 0xB1, 0xC1, 0x09, 0x23, 0x33, 0x52, 0xF0, 0x15, 0x62, 0x72, 0xD1,
    0x0A, 0x16, 0x24, 0x34, 0xE1, 0x25, 0xF1, 0x17, 0x18, 0x19, 0x1A, 0x26, 0x27, 0x28, 0x29, 0x2A, 0x35, 0x36,
    0x37, 0x38, 0x39, 0x3A, 0x43, 0x44, 0x45, 0x46, 0x47, 0x48, 0x49, 0x4A, 0x53, 0x54, 0x55, 0x56, 0x57, 0x58,
    0x59, 0x5A, 0x63, 0x64, 0x65, 0x66, 0x67, 0x68, 0x69, 0x6A, 0x73, 0x74, 0x75, 0x76, 0x77, 0x78, 0x79, 0x7A,
    0x82, 0x83, 0x84, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8A, 0x92, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99, 0x9A,
    0xA2, 0xA3, 0xA4, 0xA5, 0xA6, 0xA7, 0xA8, 0xA9, 0xAA, 0xB2, 0xB3, 0xB4, 0xB5, 0xB6, 0xB7, 0xB8, 0xB9, 0xBA,
    0xC2, 0xC3, 0xC4, 0xC5, 0xC6, 0xC7, 0xC8, 0xC9, 0xCA, 0xD2, 0xD3, 0xD4, 0xD5, 0xD6, 0xD7, 0xD8, 0xD9, 0xDA,
    0xE2, 0xE3, 0xE4, 0xE5, 0xE6, 0xE7, 0xE8, 0xE9, 0xEA, 0xF2, 0xF3, 0xF4, 0xF5, 0xF6, 0xF7, 0xF8, 0xF9, 0xFA,
];

#[cfg(test)]
mod tests {
    use image::ExtendedColorType;
    use image::codecs::jpeg::JpegEncoder;

    use super::*;

    fn picture() -> RgbImage {
        // Edges and noise: most of the tables' codes occur.
        let mut state = 7u32;
        RgbImage::from_fn(64, 48, |x, y| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let noise = (state >> 24) as u8;
            image::Rgb([(x * 4) as u8 ^ (noise / 2), (y * 5) as u8, noise])
        })
    }

    fn encoded() -> Vec<u8> {
        let (image, mut bytes) = (picture(), Vec::new());
        JpegEncoder::new_with_quality(&mut bytes, 95)
            .encode(&image, image.width(), image.height(), ExtendedColorType::Rgb8)
            .unwrap();
        bytes
    }

    /// As cameras send it, and the tables that were taken out.
    fn without_tables(bytes: &[u8]) -> (Vec<u8>, Vec<u8>) {
        let (mut rest, mut kept, mut removed) = (&bytes[2..], bytes[..2].to_vec(), Vec::new());
        while rest[1] != SCAN {
            let length = 2 + usize::from(u16::from_be_bytes([rest[2], rest[3]]));
            match rest[1] {
                HUFFMAN_TABLES => removed.extend(&rest[4..length]),
                _ => kept.extend(&rest[..length]),
            }
            rest = &rest[length..];
        }
        kept.extend(rest);
        (kept, removed)
    }

    #[test]
    fn an_image_without_its_tables_is_the_same_image() {
        let bytes = encoded();
        let (bare, removed) = without_tables(&bytes);
        assert!(!bare.windows(2).any(|pair| pair == [0xFF, HUFFMAN_TABLES]));
        // The encoder uses the standard's, which it has from elsewhere.
        let mut apart: Vec<&[u8]> = split(&removed);
        let ours = tables();
        let mut expected = split(&ours[4..]);
        apart.sort();
        expected.sort();
        assert_eq!(apart, expected);
        let (expected, found) = (decode(&bytes).unwrap(), decode(&bare).unwrap());
        assert_eq!(found, expected);
        let picture = picture();
        let differences = expected
            .iter()
            .zip(picture.iter())
            .map(|(a, b)| f64::from(a.abs_diff(*b)));
        assert!(
            differences.sum::<f64>() / (64.0 * 48.0 * 3.0) < 16.0,
            "it is the picture"
        );
    }

    fn split(mut rest: &[u8]) -> Vec<&[u8]> {
        let mut tables = Vec::new();
        while !rest.is_empty() {
            let values: usize = rest[1..17].iter().map(|count| usize::from(*count)).sum();
            let (table, after) = rest.split_at(17 + values);
            tables.push(table);
            rest = after;
        }
        tables
    }

    #[test]
    fn padding_is_cut_and_a_missing_end_refused() {
        let bytes = encoded();
        let mut padded = bytes.clone();
        padded.extend([0; 100]);
        assert_eq!(decode(&padded), decode(&bytes));
        let cut = decode(&bytes[..bytes.len() / 2]).unwrap_err();
        assert!(cut.contains("without its end"), "{cut}");
        assert!(
            decode(b"not a JPEG image")
                .unwrap_err()
                .contains("does not begin")
        );
        assert!(
            decode(&[0xFF, START, 0, 1, 2, 0xFF, END])
                .unwrap_err()
                .contains("no marker at byte 2")
        );
    }

    #[test]
    fn no_damage_is_worse_than_an_error() {
        let bytes = encoded();
        let (bare, _) = without_tables(&bytes);
        for (index, value) in (2..bytes.len())
            .step_by(41)
            .zip([0u8, 0xFF, 0xD9, 0x80].into_iter().cycle())
        {
            let mut damaged = bytes.clone();
            damaged[index] = value;
            // An image or an error, and no panic.
            drop(decode(&damaged));
            drop(decode(&bare[..index.min(bare.len())]));
            let mut cut = bare[..index.min(bare.len())].to_vec();
            cut.extend([0xFF, END]);
            drop(decode(&cut));
        }
    }
}
