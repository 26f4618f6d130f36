//! What only NVML knows: NVLinks, MIG, and what lies between two GPUs.

mod mig;

use std::ffi::{CString, c_char, c_void};
use std::path::Path;

use libloading::Library;

use super::driver::text;
use super::{Gpu, Kind, Link, NvLink, Survey};

const MAX_LINKS: u32 = 18;
const REMOTE_IS_SWITCH: u32 = 2;

type Device = *mut c_void;

/// `nvmlPciInfo_t`, version 3.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct PciInfo {
    legacy: [u8; 16],
    domain: u32,
    bus: u32,
    device: u32,
    ids: [u32; 2],
    bus_id: [u8; 32],
}

#[derive(Debug, thiserror::Error)]
pub enum NvmlError {
    #[error("cannot load NVML: {0}")]
    Library(#[from] libloading::Error),
    #[error("cannot initialize NVML (error {0})")]
    Init(u32),
}

/// NVML, by name: an older one lacks some functions, and what these would tell is not known then.
struct Nvml(Library);

impl Nvml {
    fn load(path: &Path) -> Result<Self, NvmlError> {
        // SAFETY: NVIDIA's library, which the operator's driver brought; the function has this type.
        unsafe {
            let library = Library::new(path)?;
            let init = *library.get::<unsafe extern "C" fn() -> u32>(b"nvmlInit_v2\0")?;
            match init() {
                0 => Ok(Self(library)),
                error => Err(NvmlError::Init(error)),
            }
        }
    }

    fn device(&self, pci_bus_id: &str) -> Option<Device> {
        type Call = unsafe extern "C" fn(*const c_char, *mut Device) -> u32;
        let id = CString::new(pci_bus_id).ok()?;
        let mut device = std::ptr::null_mut();
        // SAFETY: as above; the text lives across the call, the output is a local.
        unsafe {
            let call = self.0.get::<Call>(b"nvmlDeviceGetHandleByPciBusId_v2\0").ok()?;
            (call(id.as_ptr(), &mut device) == 0).then_some(device)
        }
    }

    /// A number of a device.
    fn number(&self, name: &[u8], device: Device) -> Option<u32> {
        type Call = unsafe extern "C" fn(Device, *mut u32) -> u32;
        let mut value = 0;
        // SAFETY: as above.
        unsafe { (self.0.get::<Call>(name).ok()?(device, &mut value) == 0).then_some(value) }
    }

    /// A number of one of its parts.
    fn number_of(&self, name: &[u8], device: Device, part: u32) -> Option<u32> {
        type Call = unsafe extern "C" fn(Device, u32, *mut u32) -> u32;
        let mut value = 0;
        // SAFETY: as above.
        unsafe { (self.0.get::<Call>(name).ok()?(device, part, &mut value) == 0).then_some(value) }
    }

    fn text(&self, name: &[u8], device: Device) -> Option<String> {
        type Call = unsafe extern "C" fn(Device, *mut c_char, u32) -> u32;
        let mut buffer = [0u8; 128];
        // SAFETY: as above; the buffer has the size that is said.
        let code = unsafe { self.0.get::<Call>(name).ok()?(device, buffer.as_mut_ptr().cast(), buffer.len() as u32) };
        (code == 0).then(|| text(&buffer))
    }

    fn driver_version(&self) -> Option<String> {
        type Call = unsafe extern "C" fn(*mut c_char, u32) -> u32;
        let mut buffer = [0u8; 96];
        // SAFETY: as above.
        let code = unsafe {
            let call = self.0.get::<Call>(b"nvmlSystemGetDriverVersion\0").ok()?;
            call(buffer.as_mut_ptr().cast(), buffer.len() as u32)
        };
        (code == 0).then(|| text(&buffer))
    }

    /// Whether ECC is enabled now, whatever comes with the next reset.
    fn ecc(&self, device: Device) -> Option<bool> {
        type Call = unsafe extern "C" fn(Device, *mut u32, *mut u32) -> u32;
        let (mut current, mut pending) = (0, 0);
        // SAFETY: as above.
        let code = unsafe { self.0.get::<Call>(b"nvmlDeviceGetEccMode\0").ok()?(device, &mut current, &mut pending) };
        (code == 0).then_some(current != 0)
    }

    fn remote(&self, device: Device, link: u32) -> Option<String> {
        type Call = unsafe extern "C" fn(Device, u32, *mut PciInfo) -> u32;
        let mut info = PciInfo::default();
        // SAFETY: as above; the struct is the version that this function fills.
        let code =
            unsafe { self.0.get::<Call>(b"nvmlDeviceGetNvLinkRemotePciInfo_v2\0").ok()?(device, link, &mut info) };
        (code == 0).then(|| normal(&text(&info.bus_id)))
    }

    fn nvlink(&self, device: Device) -> Option<NvLink> {
        let mut found = NvLink::default();
        let mut any = false;
        for link in 0..MAX_LINKS {
            let Some(state) = self.number_of(b"nvmlDeviceGetNvLinkState\0", device, link) else { continue };
            any = true;
            if state == 0 {
                continue;
            }
            found.active += 1;
            found.version = self.number_of(b"nvmlDeviceGetNvLinkVersion\0", device, link).unwrap_or(found.version);
            if self.number_of(b"nvmlDeviceGetNvLinkRemoteDeviceType\0", device, link) == Some(REMOTE_IS_SWITCH) {
                found.to_switches += 1;
            } else if let Some(remote) = self.remote(device, link) {
                *found.to.entry(remote).or_default() += 1;
            }
        }
        any.then_some(found)
    }

    fn ancestor(&self, one: Device, other: Device) -> Option<Kind> {
        type Call = unsafe extern "C" fn(Device, Device, *mut u32) -> u32;
        let mut level = 0;
        // SAFETY: as above.
        let code =
            unsafe { self.0.get::<Call>(b"nvmlDeviceGetTopologyCommonAncestor\0").ok()?(one, other, &mut level) };
        (code == 0).then_some(match level {
            0 => Kind::SameBoard,
            10 => Kind::PcieSwitch,
            20 => Kind::PcieSwitches,
            30 => Kind::HostBridge,
            40 => Kind::NumaNode,
            50 => Kind::System,
            _ => Kind::Unknown,
        })
    }
}

/// A PCI address as CUDA writes it: with four digits of a domain, in small letters.
fn normal(bus_id: &str) -> String {
    let id = bus_id.to_ascii_lowercase();
    match id.split_once(':') {
        Some((domain, rest)) if domain.len() > 4 && domain.starts_with("0000") => format!("{}:{rest}", &domain[4..]),
        _ => id,
    }
}

/// Adds what NVML knows to what the driver told.
pub(super) fn complete(survey: &mut Survey, path: &Path) -> Result<(), NvmlError> {
    let nvml = Nvml::load(path)?;
    survey.driver_version = nvml.driver_version();
    nvml.cut_gpus().into_iter().for_each(|gpu| put(survey, gpu));
    let devices: Vec<Option<Device>> = survey.gpus.iter().map(|gpu| nvml.device(&gpu.pci_bus_id)).collect();
    for (gpu, device) in survey.gpus.iter_mut().zip(&devices) {
        let Some(device) = *device else { continue };
        // In a zone on an instance, that is what the GPU is called.
        if let Some(uuid) = nvml.text(b"nvmlDeviceGetUUID\0", device).filter(|uuid| uuid.starts_with("MIG-")) {
            gpu.uuid = uuid;
        }
        gpu.mig = gpu.mig.take().or_else(|| nvml.mig(device));
        gpu.nvlink = nvml.nvlink(device);
        gpu.ecc = nvml.ecc(device);
        gpu.minor = nvml.number(b"nvmlDeviceGetMinorNumber\0", device);
        gpu.numa_node = numa_node(&gpu.pci_bus_id);
        gpu.compute_mode = nvml.number(b"nvmlDeviceGetComputeMode\0", device).map(|mode| {
            let names = ["default", "exclusive thread", "prohibited", "exclusive process"];
            (*names.get(mode as usize).unwrap_or(&"unknown")).to_owned()
        });
    }
    for from in 0..devices.len() {
        for to in (0..devices.len()).filter(|to| *to != from) {
            let ancestor = devices[from].zip(devices[to]).and_then(|(one, other)| nvml.ancestor(one, other));
            let links = nvlinks(survey, from, to);
            survey.links[from][to].kind =
                if links > 0 { Kind::NvLink(links) } else { ancestor.unwrap_or(Kind::Unknown) };
        }
    }
    Ok(())
}

/// The GPUs that are cut, with their instances.
pub(super) fn cut_gpus(path: &Path) -> Result<Vec<Gpu>, NvmlError> {
    Ok(Nvml::load(path)?.cut_gpus())
}

/// CUDA does not show a GPU that is cut: it shows one of its instances in its place, or nothing.
fn put(survey: &mut Survey, cut: Gpu) {
    match survey.gpus.iter_mut().find(|gpu| normal(&gpu.pci_bus_id) == cut.pci_bus_id) {
        Some(shown) => *shown = Gpu { index: shown.index, ..cut },
        None => {
            survey.links.iter_mut().for_each(|row| row.push(Link::default()));
            survey.links.push(vec![Link::default(); survey.gpus.len() + 1]);
            survey.gpus.push(Gpu { index: survey.gpus.len() as u32, ..cut });
        }
    }
}

/// NVLinks between two: those that end in the other, or the lesser number of those into the switches.
fn nvlinks(survey: &Survey, from: usize, to: usize) -> u32 {
    let [one, other] = [from, to].map(|at| survey.gpus[at].nvlink.as_ref());
    let (Some(one), Some(other)) = (one, other) else { return 0 };
    let direct = one.to.get(&normal(&survey.gpus[to].pci_bus_id)).copied().unwrap_or(0);
    direct.max(one.to_switches.min(other.to_switches))
}

fn numa_node(bus_id: &str) -> Option<u32> {
    let id = normal(bus_id);
    // It becomes part of a path.
    let plain = id.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b':' || byte == b'.');
    let text = std::fs::read_to_string(format!("/sys/bus/pci/devices/{id}/numa_node")).ok().filter(|_| plain)?;
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::survey::Slice;

    /// Three GPUs: 0 and 1 joined by two NVLinks, 2 by a host bridge; 2 is sliced.
    const FAKE: &str = r#"
        #include <string.h>
        #include <stdio.h>
        typedef struct { char legacy[16]; unsigned domain, bus, device, a, b; char bus_id[32]; } pci;
        static long n(void *d) { return (long)d - 1; }
        int nvmlInit_v2(void) { return 0; }
        int nvmlSystemGetDriverVersion(char *t, unsigned l) { strcpy(t, "580.1"); return 0; }
        int nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **d) { *d = (void *)(long)(id[6] - '0' + 1); return 0; }
        int nvmlDeviceGetMinorNumber(void *d, unsigned *v) { *v = n(d); return 0; }
        int nvmlDeviceGetMigMode(void *d, unsigned *c, unsigned *p) { if (n(d) != 2) return 3; *c = *p = 1; return 0; }
        int nvmlDeviceGetMaxMigDeviceCount(void *d, unsigned *v) { *v = 7; return 0; }
        int nvmlDeviceGetMigDeviceHandleByIndex(void *d, unsigned i, void **s) { if (i != 1) return 6; *s = (void *)9; return 0; }
        typedef struct { unsigned sms, a[5], g, c; unsigned long long mb; } attributes;
        int nvmlDeviceGetCount_v2(unsigned *v) { *v = 3; return 0; }
        int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **d) { *d = (void *)(long)(i + 1); return 0; }
        int nvmlDeviceGetPciInfo_v3(void *d, pci *p) { sprintf(p->bus_id, "00000000:0%ld:00.0", n(d)); return 0; }
        int nvmlDeviceGetMemoryInfo(void *d, unsigned long long *m) { m[0] = 141ull << 30; return 0; }
        int nvmlDeviceGetCudaComputeCapability(void *d, int *a, int *b) { *a = 9; *b = 0; return 0; }
        int nvmlDeviceGetGpuInstanceId(void *d, unsigned *v) { *v = 9; return 0; }
        int nvmlDeviceGetComputeInstanceId(void *d, unsigned *v) { *v = 0; return 0; }
        int nvmlDeviceGetAttributes_v2(void *d, attributes *a) { a->sms = 16; a->g = a->c = 1; a->mb = 16384; return 0; }
        int nvmlDeviceGetName(void *d, char *t, unsigned l) {
            strcpy(t, d == (void *)9 ? "NVIDIA H200 MIG 1g.18gb" : "NVIDIA H200"); return 0; }
        int nvmlDeviceGetUUID(void *d, char *t, unsigned l) { strcpy(t, d == (void *)9 ? "MIG-1" : "GPU-1"); return 0; }
        int nvmlDeviceGetNvLinkState(void *d, unsigned l, unsigned *v) { if (n(d) == 2) return 3; *v = l < 2; return 0; }
        int nvmlDeviceGetNvLinkVersion(void *d, unsigned l, unsigned *v) { *v = 4; return 0; }
        int nvmlDeviceGetNvLinkRemoteDeviceType(void *d, unsigned l, unsigned *v) { *v = 0; return 0; }
        int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *d, unsigned l, pci *p) {
            sprintf(p->bus_id, "00000000:0%ld:00.0", 1 - n(d)); return 0; }
        int nvmlDeviceGetTopologyCommonAncestor(void *a, void *b, unsigned *v) { *v = 30; return 0; }
        int nvmlDeviceGetEccMode(void *d, unsigned *c, unsigned *p) { if (n(d) == 2) return 3; *c = n(d); *p = 1; return 0; }
        int nvmlDeviceGetComputeMode(void *d, unsigned *v) { *v = 3; return 0; }"#;

    #[test]
    fn links_slices_and_modes_are_told() {
        let directory = testkit::directory();
        let library = directory.shared_library("libnvidia-ml.so.1", FAKE);
        let gpu = |index: u32| Gpu { index, pci_bus_id: format!("0000:0{index}:00.0"), ..Gpu::default() };
        let links = |count| vec![vec![Link::default(); count]; count];
        let mut survey = Survey { gpus: (0..3).map(gpu).collect(), links: links(3), ..Survey::default() };
        // CUDA shows an instance in place of its GPU.
        survey.gpus[2].name = "NVIDIA H200 MIG 1g.18gb".to_owned();
        complete(&mut survey, &library).unwrap();
        // Or it does not show the GPU at all.
        let mut fewer = Survey { gpus: (0..2).map(gpu).collect(), links: links(2), ..Survey::default() };
        complete(&mut fewer, &library).unwrap();
        let cut = cut_gpus(&library).unwrap();
        assert_eq!((fewer.gpus.len(), &fewer.gpus[2], fewer.links.len()), (3, &survey.gpus[2], 3));
        assert_eq!((cut.len(), cut[0].minor), (1, Some(2)));
        assert_eq!(survey.driver_version.as_deref(), Some("580.1"));
        let kinds = |from: usize| survey.links[from].iter().map(|link| link.kind.short()).collect::<Vec<_>>();
        assert_eq!(kinds(0), ["?", "NV2", "PHB"]);
        assert_eq!(kinds(1), ["NV2", "?", "PHB"]);
        assert_eq!(kinds(2), ["PHB", "PHB", "?"]);
        assert_eq!((survey.gpus[0].mig.clone(), survey.gpus[2].nvlink.clone()), (None, None));
        let mig = survey.gpus[2].mig.clone().unwrap();
        let slice = Slice {
            index: 1,
            name: "NVIDIA H200 MIG 1g.18gb".into(),
            uuid: "MIG-1".into(),
            profile: "1g.18gb".into(),
            memory_bytes: 16 << 30,
            multiprocessors: 16,
            gpu_instance: 9,
            compute_instance: 0,
        };
        assert!(mig.enabled && mig.slices == [slice], "{mig:?}");
        let whole = &survey.gpus[2];
        assert_eq!(
            (whole.name.as_str(), whole.uuid.as_str(), whole.memory_bytes),
            ("NVIDIA H200", "GPU-1", 141 << 30)
        );
        assert_eq!(whole.compute_capability, "9.0");
        assert_eq!(survey.gpus[1].compute_mode.as_deref(), Some("exclusive process"));
        assert_eq!(survey.gpus[1].minor, Some(1));
        let ecc: Vec<Option<bool>> = survey.gpus.iter().map(|gpu| gpu.ecc).collect();
        assert_eq!(ecc, [Some(false), Some(true), None]);
        assert!(matches!(complete(&mut survey, Path::new("/nowhere.so")), Err(NvmlError::Library(_))));
    }

    #[test]
    fn addresses_are_compared_in_one_form() {
        assert_eq!(normal("00000000:3B:00.0"), "0000:3b:00.0");
        assert_eq!(normal("0001:3b:00.0"), "0001:3b:00.0");
    }
}
