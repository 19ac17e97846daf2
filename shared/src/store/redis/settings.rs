//! Where the shared store is: `redis://`, `rediss://` (TLS), `redis+sentinel://`, `redis+cluster://`, and their TLS forms.

use std::path::PathBuf;

use percent_encoding::percent_decode_str;

use crate::secret::Secret;

/// How the servers at the addresses belong together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Topology {
    One,
    /// The addresses are Sentinels', and this is the name of the master that they watch.
    Sentinel {
        master: String,
    },
    Cluster,
}

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedisSettings {
    pub topology: Topology,
    pub addresses: Vec<(String, u16)>,
    pub tls: bool,
    pub username: Option<String>,
    pub password: Option<Secret>,
    /// The number of the database; a cluster has one alone.
    pub database: i64,
    /// What Sentinels ask for, where it is not what the servers ask for.
    pub sentinel_password: Option<Secret>,
    /// PEM files: the certificates to trust instead of the machine's, and our own with its key.
    pub ca_file: Option<PathBuf>,
    pub cert_file: Option<PathBuf>,
    pub key_file: Option<PathBuf>,
}

impl RedisSettings {
    /// Reads `scheme://[user:password@]host:port[,host:port…][/…]`. Behind the slash stands the number of a database, with
    /// Sentinel the name of the master and then the number.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (scheme, rest) = text.split_once("://").ok_or("expected redis://HOST:PORT")?;
        let (tls, kind) = match scheme.split_once('+') {
            Some(("redis", kind)) => (false, Some(kind)),
            Some(("rediss", kind)) => (true, Some(kind)),
            None if scheme == "redis" => (false, None),
            None if scheme == "rediss" => (true, None),
            _ => return Err(format!("{scheme}: expected redis, rediss, redis+sentinel or redis+cluster")),
        };
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, hosts) = match authority.rsplit_once('@') {
            Some((login, hosts)) => (Some(login), hosts),
            None => (None, authority),
        };
        let (username, password) = match login.map(|login| login.split_once(':').unwrap_or((login, ""))) {
            None => (None, None),
            Some((username, password)) => (filled(username)?, filled(password)?.map(Secret::new)),
        };
        let default_port = if kind == Some("sentinel") { 26379 } else { 6379 };
        let addresses = hosts.split(',').map(|host| address(host, default_port)).collect::<Result<Vec<_>, _>>()?;
        let database = |text: &str| {
            if text.is_empty() { Ok(0) } else { text.parse().map_err(|_| format!("{text:?} is no database")) }
        };
        let (topology, database) = match kind {
            None if addresses.len() > 1 => return Err("several addresses need redis+sentinel or redis+cluster".into()),
            None => (Topology::One, database(path)?),
            Some("sentinel") => {
                let (master, number) = path.split_once('/').unwrap_or((path, ""));
                if master.is_empty() {
                    return Err("the name of the master is missing behind the addresses: /mymaster".to_owned());
                }
                (Topology::Sentinel { master: master.to_owned() }, database(number)?)
            }
            Some("cluster") if path.is_empty() => (Topology::Cluster, 0),
            Some("cluster") => return Err("a cluster has one database alone".to_owned()),
            Some(other) => return Err(format!("{other}: expected sentinel or cluster")),
        };
        Ok(Self {
            topology,
            addresses,
            tls,
            username,
            password,
            database,
            sentinel_password: None,
            ca_file: None,
            cert_file: None,
            key_file: None,
        })
    }
}

fn filled(text: &str) -> Result<Option<String>, String> {
    let decoded = percent_decode_str(text).decode_utf8().map_err(|_| "the login is no UTF-8".to_owned())?;
    Ok(Some(decoded.into_owned()).filter(|text| !text.is_empty()))
}

fn address(text: &str, default_port: u16) -> Result<(String, u16), String> {
    let bad = || format!("{text:?} is no address; expected HOST:PORT");
    // An IPv6 address stands in brackets.
    let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, port)) => (host, port.strip_prefix(':')),
        None => text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
    };
    if host.is_empty() {
        return Err(bad());
    }
    let port = port.map_or(Ok(default_port), |port| port.parse().map_err(|_| bad()))?;
    Ok((host.to_owned(), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_in_every_form() {
        let one = RedisSettings::parse("redis://cache").expect("settings");
        assert_eq!((one.addresses, one.topology, one.tls), (vec![("cache".to_owned(), 6379)], Topology::One, false));
        let full = RedisSettings::parse("rediss://rc:p%40ss@[::1]:7000/3").expect("settings");
        assert_eq!(full.addresses, [("::1".to_owned(), 7000)]);
        assert_eq!((full.username.as_deref(), full.database, full.tls), (Some("rc"), 3, true));
        assert_eq!(full.password, Some(Secret::new("p@ss")));
        let sentinel = RedisSettings::parse("redis+sentinel://:x@a,b:7/main/2").expect("settings");
        assert_eq!(sentinel.topology, Topology::Sentinel { master: "main".to_owned() });
        assert_eq!(sentinel.addresses, [("a".to_owned(), 26379), ("b".to_owned(), 7)]);
        assert_eq!((sentinel.username, sentinel.database), (None, 2));
        let cluster = RedisSettings::parse("rediss+cluster://a:1,b:2").expect("settings");
        assert_eq!((cluster.topology, cluster.addresses.len()), (Topology::Cluster, 2));
        for bad in [
            "redis",
            "http://a",
            "redis+x://a",
            "redis://a,b",
            "redis://:1",
            "redis://a:b",
            "redis://a/x",
            "redis+sentinel://a",
            "redis+cluster://a/1",
            "redis://",
        ] {
            assert!(RedisSettings::parse(bad).is_err(), "{bad}");
        }
    }
}
