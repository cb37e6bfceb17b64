//! A certificate authority for one test.

use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
};

pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    folder: PathBuf,
}

/// Certificate and key in PEM files.
#[derive(Clone)]
pub(crate) struct Identity {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

impl Authority {
    /// Writes its certificate to `folder/<name>.pem`. Valid from 2026-01-01 to 2040.
    pub(crate) fn new(folder: &Path, name: &str) -> Self {
        let mut params = validity(CertificateParams::new(Vec::new()).unwrap(), 2026);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        std::fs::write(folder.join(format!("{name}.pem")), issuer.pem()).unwrap();
        Self {
            issuer,
            folder: folder.to_owned(),
        }
    }

    /// A certificate for `name` (the broker's host or a device), valid from the first day of `year`.
    pub(crate) fn issue(&self, name: &str, year: i32) -> Identity {
        let mut params = validity(CertificateParams::new(vec![name.to_owned()]).unwrap(), year);
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let at = |kind: &str| self.folder.join(format!("{name}-{year}.{kind}"));
        let identity = Identity {
            certificate: at("pem"),
            key: at("key"),
        };
        std::fs::write(&identity.certificate, certificate.pem()).unwrap();
        std::fs::write(&identity.key, key.serialize_pem()).unwrap();
        identity
    }
}

fn validity(mut params: CertificateParams, year: i32) -> CertificateParams {
    params.not_before = rcgen::date_time_ymd(year, 1, 1);
    params.not_after = rcgen::date_time_ymd(2040, 1, 1);
    params
}
