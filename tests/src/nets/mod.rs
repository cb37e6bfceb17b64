//! Well-known networks with seeded random weights, for benchmarks and for tests of shapes, memory and speed: the
//! layers and sizes are the published ones, the numbers mean nothing. And a detector whose results are known.

pub(crate) mod builder;
mod minilm;
mod mobilenet_v2;
mod resnet50;
mod square_finder;
mod yolov8n;

use edgeopt_models::Model;

pub use square_finder::{SquareFinder, square_finder};

/// Makes one network.
pub type Make = fn() -> Model;

/// Name and maker of each network.
pub const NETS: [(&str, Make); 4] = [
    ("resnet50", resnet50::build),
    ("mobilenet_v2", mobilenet_v2::build),
    ("yolov8n", yolov8n::build),
    ("minilm", minilm::build),
];

/// The network called `name`.
pub fn by_name(name: &str) -> Option<Model> {
    NETS.iter()
        .find(|(known, _)| *known == name)
        .map(|(_, build)| build())
}
