//! Reads a page of a list while it arrives. Of each object only what is kept is ever in memory, whatever else is in it; a
//! page as a whole never is.

use std::io::{self, BufReader, Read};
use std::time::Duration;

use futures::{AsyncBufRead, AsyncBufReadExt};
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use tokio::sync::mpsc;

use super::held::Held;
use super::spec::Object;

/// How long an API server may pause in the middle of a page.
const STALL: Duration = Duration::from_secs(30);

/// `metadata` of a list.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct End {
    /// Where the next page begins; empty after the last one.
    #[serde(default)]
    pub r#continue: String,
    #[serde(default)]
    pub resource_version: String,
}

/// Puts the objects of a page into `held`.
pub(super) async fn read(body: impl AsyncBufRead, mut held: Held) -> io::Result<(Held, End)> {
    let (to, from) = mpsc::channel(1);
    // The parser reads as a thread does. It ends with `to`, so nothing waits for it when we are no longer wanted.
    let parser = tokio::task::spawn_blocking(move || {
        let end = parse(BufReader::new(Chunks { from, current: Vec::new(), at: 0 }), &mut held)?;
        Ok::<_, io::Error>((held, end))
    });
    let mut body = std::pin::pin!(body);
    loop {
        let chunk = tokio::time::timeout(STALL, body.fill_buf()).await.map_err(io::Error::from)??.to_vec();
        if chunk.is_empty() {
            break;
        }
        body.consume_unpin(chunk.len());
        if to.send(chunk).await.is_err() {
            // It has seen enough; its result says why.
            break;
        }
    }
    drop(to);
    parser.await.map_err(io::Error::other)?
}

fn parse(bytes: impl Read, held: &mut Held) -> io::Result<End> {
    let mut parser = serde_json::Deserializer::from_reader(bytes);
    Ok(Page(held).deserialize(&mut parser)?)
}

struct Chunks {
    from: mpsc::Receiver<Vec<u8>>,
    current: Vec<u8>,
    at: usize,
}

impl Read for Chunks {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.at == self.current.len() {
            (self.current, self.at) = (self.from.blocking_recv().unwrap_or_default(), 0);
        }
        let rest = &self.current[self.at..];
        let count = rest.len().min(into.len());
        into[..count].copy_from_slice(&rest[..count]);
        self.at += count;
        Ok(count)
    }
}

/// A list.
struct Page<'a>(&'a mut Held);

impl<'de> DeserializeSeed<'de> for Page<'_> {
    type Value = End;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<End, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Page<'_> {
    type Value = End;

    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("a list of GpuShareGrants")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<End, A::Error> {
        let mut end = End::default();
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "items" => map.next_value_seed(Items(self.0))?,
                "metadata" => end = map.next_value()?,
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(end)
    }
}

struct Items<'a>(&'a mut Held);

impl<'de> DeserializeSeed<'de> for Items<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Items<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("GpuShareGrants")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        while let Some(object) = items.next_element::<Object>()? {
            let (key, spec) = object.into_parts();
            self.0.put(key, spec);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_gives_its_objects_and_where_the_next_one_begins() {
        let mut held = Held::default();
        let page = r#"{"kind": "GpuShareGrantList", "items": [
            {"metadata": {"name": "a", "namespace": "n", "annotations": {"x": "\"y\\"}}, "spec": {"to": {"namespace": "m"}}},
            {"metadata": {"name": "b", "namespace": "n", "managedFields": [{}, [[1]]]}, "spec": {"too": 1}, "status": {}}],
            "metadata": {"resourceVersion": "7", "continue": "c", "remainingItemCount": 4}}"#;
        let end = parse(page.as_bytes(), &mut held).unwrap();
        assert_eq!(end, End { r#continue: "c".into(), resource_version: "7".into() });
        assert_eq!(
            held.iter().map(|(namespace, spec)| (namespace, spec.to.namespace.as_str())).collect::<Vec<_>>(),
            [("n", "m")]
        );
        assert_eq!(held.notes().count(), 1, "the other one is named");
    }

    #[test]
    fn a_page_that_is_cut_off_or_no_list_is_an_error() {
        for page in [r#"{"items": [{"metadata": {"#, "", "[]", r#"{"items": {}}"#, r#"{"items": [1]}"#] {
            assert!(parse(page.as_bytes(), &mut Held::default()).is_err(), "{page}");
        }
    }
}
