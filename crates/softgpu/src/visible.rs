//! `CUDA_VISIBLE_DEVICES`: which devices a process sees, and in what order.

use super::device::uuid;

/// The slots that a list names, by number or by the start of a UUID. As natively, the first entry that names no device
/// ends the list, and naming one twice hides all.
pub(crate) fn slots(list: &str, there: &[usize]) -> Vec<usize> {
    let mut slots = Vec::new();
    for entry in list.split(',').map(str::trim) {
        let Some(slot) = find(entry, there) else { break };
        if slots.contains(&slot) {
            return Vec::new();
        }
        slots.push(slot);
    }
    slots
}

fn find(entry: &str, there: &[usize]) -> Option<usize> {
    // A device that stands for an instance of a GPU is called by that name.
    let Some(start) = entry.strip_prefix("GPU-").or_else(|| entry.strip_prefix("MIG-")) else {
        return there.get(entry.parse::<usize>().ok()?).copied();
    };
    let start = start.to_ascii_lowercase();
    let mut matching = there.iter().copied().filter(|slot| !start.is_empty() && written(*slot).starts_with(&start));
    // The start must be enough to tell.
    matching.next().filter(|_| matching.next().is_none())
}

/// A device's UUID as tools write it.
fn written(slot: usize) -> String {
    cuda_abi::wire::view::uuid_text("GPU", &uuid(slot)).split_off("GPU-".len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_as_natively() {
        assert_eq!(slots("0,2", &[0, 1, 2]), [0, 2]);
        assert_eq!(slots("2, 1,0", &[0, 1, 2]), [2, 1, 0]);
        assert_eq!(slots("1,7,0", &[0, 1, 2]), [1], "what follows nonsense is ignored");
        assert!(slots("", &[0, 1, 2]).is_empty());
        assert!(slots("-1", &[0, 1, 2]).is_empty());
        assert!(slots("1,1", &[0, 1, 2]).is_empty());
        assert_eq!(slots(&format!("GPU-{}", written(2)), &[0, 1, 2]), [2]);
        assert_eq!(slots(&format!("MIG-{}", written(2)), &[0, 1, 2]), [2]);
        assert!(slots("GPU-", &[0, 1, 2]).is_empty());
        assert!(slots("GPU-626c", &[0, 1, 2]).is_empty(), "could be any of them");
        assert_eq!(slots("GPU-626c", &[0]), [0]);
        // A process that is shown some of them counts those.
        assert_eq!(slots("0", &[1, 2]), [1]);
        assert!(slots("2", &[1, 2]).is_empty());
        assert!(slots(&format!("GPU-{}", written(0)), &[1, 2]).is_empty());
    }
}
