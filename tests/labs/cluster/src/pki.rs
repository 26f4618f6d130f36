//! Keys and certificates of the cluster, created for each.

use anyhow::Result;
use serde_json::json;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use xtask::sh;

pub(crate) struct Pki {
    dir: PathBuf,
    server: String,
}

impl Pki {
    /// Makes an authority, and keys that sign the tokens of service accounts.
    pub(crate) fn new(dir: &Path, server: &str) -> Result<Pki> {
        fs::create_dir_all(dir)?;
        let pki = Pki { dir: dir.to_path_buf(), server: server.to_owned() };
        pki.openssl(&["ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", "ca.key"])?;
        let authority = ["req", "-x509", "-new", "-key", "ca.key", "-days", "30", "-subj", "/CN=bulkhead-e2e"];
        pki.openssl(&[&authority[..], &["-out", "ca.crt"]].concat())?;
        pki.openssl(&["genrsa", "-out", "accounts.key", "2048"])?;
        pki.openssl(&["rsa", "-in", "accounts.key", "-pubout", "-out", "accounts.pub"])?;
        Ok(pki)
    }

    pub(crate) fn file(&self, name: &str) -> String {
        self.dir.join(name).display().to_string()
    }

    /// A certificate for `subject`, such as `/O=system:masters/CN=admin`, as `name.crt` with `name.key`.
    pub(crate) fn issue(&self, name: &str, subject: &str, addresses: &[&str]) -> Result<()> {
        let (key, request, certificate) = (format!("{name}.key"), format!("{name}.csr"), format!("{name}.crt"));
        self.openssl(&["ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", &key])?;
        self.openssl(&["req", "-new", "-key", &key, "-subj", subject, "-out", &request])?;
        let extensions = format!("{name}.ext");
        let mut text = "basicConstraints=CA:FALSE\nextendedKeyUsage=serverAuth,clientAuth\n".to_owned();
        if !addresses.is_empty() {
            text += &format!("subjectAltName={}\n", addresses.join(","));
        }
        fs::write(self.dir.join(&extensions), text)?;
        let by = ["-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "30", "-extfile", &extensions];
        self.openssl(&[&["x509", "-req", "-in", &request, "-out", &certificate][..], &by[..]].concat())
    }

    /// A certificate, and a file with which a client finds the cluster and shows it. Gives the file's path.
    pub(crate) fn client(&self, name: &str, subject: &str) -> Result<String> {
        self.issue(name, subject, &[])?;
        // JSON is YAML.
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "e2e",
            "clusters": [{ "name": "e2e", "cluster": {
                "server": self.server, "certificate-authority": self.file("ca.crt") } }],
            "users": [{ "name": name, "user": {
                "client-certificate": self.file(&format!("{name}.crt")),
                "client-key": self.file(&format!("{name}.key")) } }],
            "contexts": [{ "name": "e2e", "context": { "cluster": "e2e", "user": name } }],
        });
        let file = self.dir.join(format!("{name}.conf"));
        fs::write(&file, config.to_string())?;
        Ok(file.display().to_string())
    }

    fn openssl(&self, words: &[&str]) -> Result<()> {
        sh::output(Command::new("openssl").current_dir(&self.dir).args(words)).map(drop)
    }
}
