//! Which broker, and who we are to it: the same options on every fleet command.

use std::path::PathBuf;

use anyhow::{Context, bail};
use edgeopt_agent::config::Tls;
use edgeopt_agent::fleet::{Access, Operator};

/// Stands for `--broker`.
const VARIABLE: &str = "EDGEOPT_BROKER";

#[derive(clap::Args)]
#[command(next_help_heading = "Broker")]
pub(crate) struct BrokerArguments {
    /// The broker; the port is 8883 with TLS and 1883 without, unless given. mqtts://HOST implies --tls; mqtt://HOST does
    /// not, and is encrypted with --tls all the same.
    #[arg(short, long, value_name = "HOST[:PORT]")]
    broker: Option<String>,

    /// Encrypts, and checks the broker's certificate by the system's authorities or --ca.
    #[arg(long)]
    tls: bool,

    /// Authorities for the broker's certificate (PEM); implies --tls.
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,

    /// Our certificate with its chain (PEM); implies --tls.
    #[arg(long, value_name = "FILE", requires = "key")]
    certificate: Option<PathBuf>,

    /// The certificate's key (PEM).
    #[arg(long, value_name = "FILE", requires = "certificate")]
    key: Option<PathBuf>,

    /// User name.
    #[arg(long, value_name = "NAME")]
    username: Option<String>,

    /// File whose first line is the password.
    #[arg(long, value_name = "FILE", requires = "username")]
    password_file: Option<PathBuf>,
}

impl BrokerArguments {
    pub(super) fn connect(&self) -> anyhow::Result<Operator> {
        let text = match &self.broker {
            Some(text) => text.clone(),
            None => std::env::var(VARIABLE)
                .with_context(|| format!("no broker: give --broker HOST[:PORT] or set {VARIABLE}"))?,
        };
        Ok(Operator::connect(&self.access(&text)?)?)
    }

    fn access(&self, broker: &str) -> anyhow::Result<Access> {
        let (encrypted, host, port) = split(broker)?;
        let wants_tls = encrypted || self.tls || self.ca.is_some() || self.certificate.is_some();
        Ok(Access {
            host,
            port,
            tls: wants_tls.then(|| Tls {
                ca: self.ca.clone(),
                certificate: self.certificate.clone(),
                key: self.key.clone(),
                alpn: Vec::new(),
            }),
            username: self.username.clone(),
            password_file: self.password_file.clone(),
        })
    }
}

/// `host`, `host:port`, `[address]:port`, with an optional `mqtt://`, or `mqtts://`, which asks for encryption: whether
/// it does, the host, and the port.
fn split(text: &str) -> anyhow::Result<(bool, String, Option<u16>)> {
    let (encrypted, rest) = match text.split_once("://") {
        None => (false, text),
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("mqtt") => (false, rest),
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("mqtts") => (true, rest),
        Some((scheme, _)) => bail!("--broker {text:?}: {scheme:?} is not known here; use mqtt or mqtts"),
    };
    let rest = rest.trim_end_matches('/');
    let port = |port: &str| {
        port.parse::<u16>()
            .ok()
            .filter(|port| *port > 0)
            .with_context(|| format!("--broker {text:?}: {port:?} is no port"))
    };
    let (host, port) = match (rest.strip_prefix('['), rest.matches(':').count()) {
        (Some(bracketed), _) => {
            let (host, behind) = bracketed
                .split_once(']')
                .with_context(|| format!("--broker {text:?}: the bracket is not closed"))?;
            (host, behind.strip_prefix(':').map(port).transpose()?)
        }
        (None, 1) => {
            let (host, behind) = rest.split_once(':').unwrap_or((rest, ""));
            (host, Some(port(behind)?))
        }
        _ => (rest, None),
    };
    if host.is_empty() || host.contains(|c: char| c.is_whitespace() || c == '/') {
        bail!("--broker {text:?}: write a name or address, with a port if it is not the usual one");
    }
    Ok((encrypted, host.to_owned(), port))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::{BrokerArguments, split};

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        broker: BrokerArguments,
    }

    #[test]
    fn mqtts_is_encrypted_without_further_options() {
        for (broker, option, encrypted) in [
            ("mqtts://b", None, true),
            ("MQTTS://b:1883", None, true),
            ("mqtt://b", None, false),
            ("mqtt://b", Some("--tls"), true),
            ("b", None, false),
            ("b", Some("--tls"), true),
            ("b", Some("--ca=a.pem"), true),
        ] {
            let line = Line::parse_from(std::iter::once("edgeopt").chain(option));
            let access = line.broker.access(broker).unwrap();
            assert_eq!(access.tls.is_some(), encrypted, "{broker} {option:?}");
        }
    }

    #[test]
    fn brokers_are_taken_apart() {
        for (text, encrypted, host, port) in [
            ("broker.example", false, "broker.example", None),
            ("mqtts://broker.example:8884/", true, "broker.example", Some(8884)),
            ("mqtt://[::1]", false, "::1", None),
            ("[::1]:1883", false, "::1", Some(1883)),
            ("::1", false, "::1", None),
        ] {
            assert_eq!(split(text).unwrap(), (encrypted, host.to_owned(), port));
        }
        for (text, part) in [
            ("b:x", "\"x\" is no port"),
            ("b:0", "is no port"),
            ("[::1", "not closed"),
            ("a/b", "write a name"),
            ("wss://b", "\"wss\" is not known here"),
            ("", "write a name"),
        ] {
            let error = split(text).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
