//! GPUs that are computed on the CPU and cut into instances, so that all this can be tried without such a GPU: what the
//! software driver shows as a device each is an instance.

use cuda_abi::wire::view::{Card, Instance};

use super::{Gpu, Link, Mig, Slice, Survey};
use control::mig;

/// Its size, like that of NVIDIA's.
pub fn profile(memory: u64) -> String {
    format!("1g.{}gb", memory.div_ceil(1 << 30))
}

/// The UUID of a GPU, made of that of one of its instances: no device has it.
fn parent(uuid: [u8; 16], gpu: u32) -> [u8; 16] {
    let mut parent = uuid;
    parent[14..].copy_from_slice(&[b'M', gpu as u8]);
    parent
}

/// The same, as it is written: the last two bytes are four digits.
fn parent_text(uuid: &str, gpu: u32) -> String {
    let kept = uuid.len().saturating_sub(4);
    format!("{}{:02x}{:02x}", &uuid[..kept], b'M', gpu as u8)
}

/// Makes instances of cards, of which there are so many to a GPU.
pub fn cut_cards(cards: &mut [Card], instances: u32) {
    for (at, card) in (0..).zip(cards) {
        let instance = mig::Instance { gpu: at / instances, gpu_instance: at % instances, compute_instance: 0 };
        card.mig = instance.number().map(|number| Instance {
            gpu: parent(card.uuid, instance.gpu),
            profile: profile(card.memory),
            number,
        });
    }
}

/// Makes slices of a survey's GPUs, of which there are so many to a GPU.
pub fn cut(survey: &mut Survey, instances: u32) {
    let every = instances.max(1) as usize;
    let parts = std::mem::take(&mut survey.gpus);
    for (gpu, parts) in (0..).zip(parts.chunks(every)) {
        let slice = |(index, part): (u32, &Gpu)| Slice {
            index,
            name: part.name.clone(),
            uuid: part.uuid.replacen("GPU-", "MIG-", 1),
            profile: profile(part.memory_bytes),
            memory_bytes: part.memory_bytes,
            multiprocessors: part.multiprocessors,
            gpu_instance: index,
            compute_instance: 0,
        };
        let first = &parts[0];
        survey.gpus.push(Gpu {
            index: gpu,
            uuid: parent_text(&first.uuid, gpu),
            memory_bytes: parts.iter().map(|part| part.memory_bytes).sum(),
            mig: Some(Mig { enabled: true, slices: (0..).zip(parts).map(slice).collect() }),
            ..first.clone()
        });
    }
    let row = |row: &Vec<Link>| row.iter().step_by(every).cloned().collect();
    survey.links = survey.links.iter().step_by(every).map(row).collect();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_devices_are_two_gpus_of_two_slices_each() {
        let gpu = |index: u32| Gpu {
            index,
            uuid: format!("GPU-626c6b68-6400-8000-8073-6f66746770{index:02x}"),
            memory_bytes: 2 << 30,
            ..Gpu::default()
        };
        let link = |rank| Link { rank: Some(rank), ..Link::default() };
        let links = (0..4).map(|from| (0..4).map(|to| link(from * 4 + to)).collect()).collect();
        let mut survey = Survey { gpus: (0..4).map(gpu).collect(), links, ..Survey::default() };
        cut(&mut survey, 2);
        assert_eq!((survey.gpus.len(), survey.gpus[1].index, survey.gpus[1].memory_bytes), (2, 1, 4 << 30));
        assert_eq!(survey.gpus[1].uuid, "GPU-626c6b68-6400-8000-8073-6f6674674d01");
        let slices = &survey.gpus[1].mig.as_ref().unwrap().slices;
        assert_eq!(slices[1].uuid, "MIG-626c6b68-6400-8000-8073-6f6674677003");
        assert_eq!((slices[1].profile.as_str(), slices[1].index), ("1g.2gb", 1));
        let ranks: Vec<Vec<_>> = survey.links.iter().map(|row| row.iter().map(|link| link.rank).collect()).collect();
        assert_eq!(ranks, [[Some(0), Some(2)], [Some(8), Some(10)]]);
    }
}
