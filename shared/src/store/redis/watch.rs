//! Hearing of changes: notifications, and a beat that reads every partition's position.
//!
//! A notification is a hint. The beat is the truth, also of a channel that is cut without anyone noticing: what it reads
//! was begun at a known time, and nothing written before that can be missed. Two beats that fail make the store silent;
//! the connection is then made anew, through Sentinel where there is one.

use std::sync::Arc;
use tokio::time::Instant;

use futures_util::future::join_all;
use redis::RedisResult;

use super::link::{Connection, is_of_wrong_type};
use super::{MEMBERS_CHANNEL, RedisStore, Topology, key};
use crate::limits;
use crate::store::{Heard, PARTITIONS, Position};

/// Incarnation, version and tag, as they are stored.
pub(super) type Row = (Option<u64>, Option<u64>, Option<u64>);

pub(super) fn read_position(row: Row) -> Option<Position> {
    let (incarnation, version, tag) = row;
    Some(Position { incarnation: incarnation?, version: version?, tag: tag? })
}

pub(super) fn ask_position(partition: usize) -> redis::Cmd {
    let mut command = redis::cmd("HMGET");
    command.arg(key(partition, "meta")).arg("inc").arg("ver").arg("tag");
    command
}

impl RedisStore {
    pub(super) async fn watch_forever(&self) {
        let mut pause = limits::STORE_RECONNECT_FIRST;
        loop {
            match self.session().await {
                Ok(()) => pause = limits::STORE_RECONNECT_FIRST,
                Err(error) => {
                    tracing::warn!(%error, "the store cannot be connected to");
                    pause = (pause * 2).min(limits::STORE_RECONNECT_LONGEST);
                }
            }
            self.link.disconnect().await;
            tokio::time::sleep(jittered(pause)).await;
        }
    }

    /// One connection, from its opening to its loss.
    async fn session(&self) -> RedisResult<()> {
        let hearing = self.clone();
        let on_message = Arc::new(move |channel: &[u8], payload: &[u8]| hearing.hear(channel, payload));
        let mut connection = self.link.connect(on_message).await?;
        let mut channels: Vec<String> = (0..PARTITIONS).map(|partition| key(partition, "ch")).collect();
        channels.push(MEMBERS_CHANNEL.to_owned());
        if let Err(error) = connection.subscribe(&channels).await {
            tracing::warn!(%error, "nobody notifies this node; it hears of changes by its beat alone");
        }
        self.beat(&mut connection).await?;
        self.members.send_modify(|n| *n += 1);
        tracing::info!("the store is connected");
        let mut failed = 0;
        loop {
            tokio::select! {
                () = self.link.lost() => {
                    tracing::warn!("the store closed the connection");
                    return Ok(());
                }
                () = tokio::time::sleep(limits::STORE_BEAT) => {}
            }
            match self.beat(&mut connection).await {
                Ok(()) => failed = 0,
                Err(error) => {
                    failed += 1;
                    self.link.is_silent(true);
                    tracing::warn!(%error, failed, "the store does not answer");
                    if failed >= 2 {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Reads the positions of all partitions. Fails where none could be read.
    async fn beat(&self, connection: &mut Connection) -> RedisResult<()> {
        let as_of = Instant::now();
        let rows: Vec<RedisResult<Row>> = if self.link.settings.topology == Topology::Cluster {
            join_all((0..PARTITIONS).map(|partition| {
                let mut connection = connection.clone();
                async move { ask_position(partition).query_async(&mut connection).await }
            }))
            .await
        } else {
            let mut pipeline = redis::pipe();
            pipeline.ignore_errors();
            for partition in 0..PARTITIONS {
                pipeline.add_command(ask_position(partition));
            }
            pipeline.query_async(connection).await?
        };
        let mut failure = None;
        let mut answered = false;
        let heard: Vec<Option<Heard>> = rows
            .into_iter()
            .map(|row| match row {
                Ok(row) => {
                    answered = true;
                    let at = |position| Heard::At { position, as_of: Some(as_of) };
                    Some(read_position(row).map_or(Heard::Unseeded, at))
                }
                // Something else stands where the marker should.
                Err(error) if is_of_wrong_type(&error) => {
                    answered = true;
                    Some(Heard::Unseeded)
                }
                Err(error) => {
                    failure = Some(error);
                    None
                }
            })
            .collect();
        if let Some(failure) = failure.filter(|_| !answered) {
            return Err(failure);
        }
        self.link.is_silent(false);
        self.versions.beat(heard);
        Ok(())
    }

    fn hear(&self, channel: &[u8], payload: &[u8]) {
        if channel == MEMBERS_CHANNEL.as_bytes() {
            self.members.send_modify(|n| *n += 1);
            return;
        }
        let parse = || {
            let channel = std::str::from_utf8(channel).ok()?;
            let partition: usize = channel.strip_prefix("rc:{p")?.strip_suffix("}:ch")?.parse().ok()?;
            let (version, tag) = std::str::from_utf8(payload).ok()?.split_once(' ')?;
            Some((partition, version.parse().ok()?, tag.parse().ok()?))
        };
        if let Some((partition, version, tag)) = parse()
            && let Heard::At { position, .. } = self.versions.heard(partition)
        {
            self.versions.hint(partition, Position { version, tag, ..position });
        }
    }
}

/// Between half and the whole of a pause, so that many nodes do not come back at once.
fn jittered(pause: std::time::Duration) -> std::time::Duration {
    let random = u32::from(crate::digest::random().first().copied().unwrap_or(0));
    pause / 2 + pause / 2 * random / 255
}
