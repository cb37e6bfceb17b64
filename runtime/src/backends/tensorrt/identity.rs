//! Which TensorRT a library is, and which plugin may talk to it. Pure: names and numbers in, an answer out.

use std::fmt;

/// The two products; their version numbers have nothing to do with each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Product {
    /// TensorRT, of JetPack and servers.
    TensorRt,
    /// TensorRT-RTX, of desktops; builds engines without a GPU.
    Rtx,
}

impl fmt::Display for Product {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TensorRt => "TensorRT",
            Self::Rtx => "TensorRT-RTX",
        })
    }
}

/// A product at a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity {
    /// Which product.
    pub product: Product,
    /// Major, minor, patch.
    pub version: (u32, u32, u32),
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor, patch) = self.version;
        write!(f, "{} {major}.{minor}.{patch}", self.product)
    }
}

/// Versions whose C++ classes have the same layout: each family only appends functions, so that a plugin works with its
/// own version of the headers and every later one of the family. With another family it would crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Family(Product, u32);

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let versions = match (self.0, self.1) {
            (Product::TensorRt, 8) => "8.5-8.6",
            (Product::TensorRt, 10) => "10.x",
            (Product::TensorRt, _) => "11.x",
            (Product::Rtx, 3) => "1.3-1.4",
            (Product::Rtx, _) => "1.5-1.7",
        };
        write!(f, "{} {versions}", self.0)
    }
}

impl Identity {
    /// What `getInferLibVersion` says about a library of `product`: major × 1000 up to 8.x, major × 10000 since.
    pub(super) fn from_number(product: Product, number: i32) -> Option<Self> {
        let number = u32::try_from(number).ok()?;
        let version = match number {
            5000..=9999 => (number / 1000, number / 100 % 10, number % 100),
            10_000.. => (number / 10_000, number / 100 % 100, number % 100),
            _ => return None,
        };
        Some(Self { product, version })
    }

    /// The same of a plugin's headers: major × 10000 + minor × 100 + patch.
    pub(super) fn of_headers(is_rtx: bool, number: u32) -> Self {
        let product = if is_rtx { Product::Rtx } else { Product::TensorRt };
        Self {
            product,
            version: (number / 10_000, number / 100 % 100, number % 100),
        }
    }

    /// The family; `None` for versions whose layout is not known.
    pub(super) fn family(self) -> Option<Family> {
        let (major, minor, _) = self.version;
        let key = match (self.product, major, minor) {
            (Product::TensorRt, 8, 5 | 6) => 8,
            (Product::TensorRt, 10, _) => 10,
            (Product::TensorRt, 11, 1..) => 11,
            (Product::Rtx, 1, 3 | 4) => 3,
            (Product::Rtx, 1, 5..=7) => 5,
            _ => return None,
        };
        Some(Family(self.product, key))
    }

    /// Whether a plugin compiled with the headers of `headers` may talk to this library.
    ///
    /// # Errors
    /// With the reason, in words.
    pub(super) fn accepts(self, headers: Self) -> Result<(), String> {
        let Some(family) = self.family() else {
            return Err(format!("{self} is not among the versions this program knows"));
        };
        match headers.family() {
            Some(other) if other == family => {}
            Some(other) => {
                return Err(format!(
                    "it was compiled for {other}, whose classes are laid out differently from those of {family}"
                ));
            }
            None => {
                return Err(format!(
                    "it was compiled for {headers}, which this program does not know"
                ));
            }
        }
        let (needed, present) = (
            (headers.version.0, headers.version.1),
            (self.version.0, self.version.1),
        );
        if needed > present {
            return Err(format!(
                "it was compiled for {headers}, the library is the older {self}"
            ));
        }
        Ok(())
    }
}

/// The version in a plugin's file name, `libedgeopt_tensorrt_rtx_1.7.so`.
pub(super) fn of_plugin_file(name: &str) -> Option<Identity> {
    let rest = name.strip_prefix("libedgeopt_tensorrt_")?.strip_suffix(".so")?;
    let (product, version) = rest.split_once('_')?;
    let product = match product {
        "trt" => Product::TensorRt,
        "rtx" => Product::Rtx,
        _ => return None,
    };
    let (major, minor) = version.split_once('.')?;
    Some(Identity {
        product,
        version: (major.parse().ok()?, minor.parse().ok()?, 0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trt(major: u32, minor: u32) -> Identity {
        Identity {
            product: Product::TensorRt,
            version: (major, minor, 0),
        }
    }

    fn rtx(minor: u32) -> Identity {
        Identity {
            product: Product::Rtx,
            version: (1, minor, 0),
        }
    }

    #[test]
    fn numbers_read_as_the_libraries_mean_them() {
        let read =
            |product, number| Identity::from_number(product, number).map(|identity| identity.to_string());
        assert_eq!(read(Product::TensorRt, 8601).as_deref(), Some("TensorRT 8.6.1"));
        assert_eq!(
            read(Product::TensorRt, 100_300).as_deref(),
            Some("TensorRT 10.3.0")
        );
        assert_eq!(
            read(Product::TensorRt, 110_400).as_deref(),
            Some("TensorRT 11.4.0")
        );
        assert_eq!(read(Product::Rtx, 10_701).as_deref(), Some("TensorRT-RTX 1.7.1"));
        assert_eq!(read(Product::TensorRt, -1), None);
        assert_eq!(read(Product::TensorRt, 12), None);
    }

    #[test]
    fn plugins_of_the_same_family_and_not_newer_are_accepted() {
        for (library, headers) in [
            (trt(8, 6), trt(8, 5)),
            (trt(10, 16), trt(10, 3)),
            (trt(11, 4), trt(11, 4)),
            (rtx(7), rtx(5)),
            (rtx(4), rtx(3)),
        ] {
            assert_eq!(library.accepts(headers), Ok(()), "{library} {headers}");
        }
        for (library, headers, word) in [
            (trt(8, 6), trt(10, 3), "laid out differently"),
            (trt(10, 3), trt(10, 16), "older"),
            (rtx(7), trt(11, 4), "laid out differently"),
            (rtx(7), rtx(4), "laid out differently"),
            (rtx(5), rtx(7), "older"),
            (trt(12, 0), trt(11, 4), "not among the versions"),
            (trt(8, 2), trt(8, 5), "not among the versions"),
            (rtx(7), trt(9, 1), "does not know"),
        ] {
            let problem = library.accepts(headers).unwrap_err();
            assert!(problem.contains(word), "{library} {headers}: {problem}");
        }
    }

    #[test]
    fn plugin_files_tell_their_version() {
        assert_eq!(of_plugin_file("libedgeopt_tensorrt_rtx_1.7.so"), Some(rtx(7)));
        assert_eq!(
            of_plugin_file("libedgeopt_tensorrt_trt_10.16.so"),
            Some(trt(10, 16))
        );
        for other in [
            "libnvinfer.so.10",
            "libedgeopt_tensorrt_x_1.7.so",
            "libedgeopt_tensorrt_rtx_1.so",
        ] {
            assert_eq!(of_plugin_file(other), None, "{other}");
        }
    }
}
