//! The fleet protocol and the device daemon.
