//! Whether GPUs work, as NVML tells.
//!
//! Drivers from 570 on say themselves what it takes to recover a GPU, and that alone counts: an error of a tenant's program is no
//! reason, and a GPU that was reset is fine again. Of an older driver those Xids count which only hardware causes; they count
//! until NVML is initialised again, which whoever resets a GPU must do, because this process has it open.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::time::Duration;

use control::meter::{Condition, Reading};
use libloading::Library;

use super::{MAX_GPUS, Nvml};

const GPU_IS_LOST: u32 = 15;
const RESET_REQUIRED: u32 = 16;
/// `nvmlEventTypeXidCriticalError`
const XID_EVENTS: u64 = 8;
/// `NVML_FI_DEV_GET_GPU_RECOVERY_ACTION`
const RECOVERY_ACTION: u32 = 230;

/// Errors that no program can cause: memory that cannot be corrected (48, 64, 95, 140), a processor in the GPU that stands still
/// (62, 119, 120, 143), NVLink (74), the bus (79). Others, such as 13, 31 and 43, are what a tenant's kernel does wrong: they must
/// not take a GPU from everybody else.
const HARDWARE: [u64; 10] = [48, 62, 64, 74, 79, 95, 119, 120, 140, 143];

/// `nvmlFieldValue_t`
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct FieldValue {
    field: u32,
    scope: u32,
    timestamp: i64,
    latency: i64,
    kind: u32,
    code: u32,
    value: u64,
}

/// `nvmlEventData_t`
#[derive(Clone, Copy)]
#[repr(C)]
struct EventData {
    device: *mut c_void,
    kind: u64,
    data: u64,
    gpu_instance: u32,
    compute_instance: u32,
}

type Create = unsafe extern "C" fn(*mut *mut c_void) -> u32;
type Register = unsafe extern "C" fn(*mut c_void, u64, *mut c_void) -> u32;
type Wait = unsafe extern "C" fn(*mut c_void, *mut EventData, u32) -> u32;

/// The functions that tell of errors as they happen.
pub(super) struct Events {
    create: Create,
    register: Register,
    wait: Wait,
}

impl Events {
    pub(super) fn load(library: &Library) -> Option<Self> {
        // SAFETY: NVIDIA's library; its functions have these types.
        unsafe {
            let create = *library.get::<Create>(b"nvmlEventSetCreate\0").ok()?;
            let register = *library.get::<Register>(b"nvmlDeviceRegisterEvents\0").ok()?;
            let wait = *library.get::<Wait>(b"nvmlEventSetWait_v2\0").ok()?;
            Some(Self { create, register, wait })
        }
    }
}

pub(super) struct Watch<'a> {
    nvml: &'a Nvml,
    /// The set of events, where there is one to wait for.
    set: Option<*mut c_void>,
    /// Numbers of GPUs by their place: one that is lost may not tell its number any more.
    minors: BTreeMap<u32, u32>,
    /// Errors of hardware by GPU.
    xids: BTreeMap<u32, u32>,
}

impl<'a> Watch<'a> {
    pub(super) fn new(nvml: &'a Nvml) -> Self {
        let mut watch = Self { nvml, set: None, minors: BTreeMap::new(), xids: BTreeMap::new() };
        watch.register();
        watch
    }

    fn register(&mut self) {
        let Some(events) = &self.nvml.events else { return };
        let mut set = std::ptr::null_mut();
        // SAFETY: the output is a local.
        if unsafe { (events.create)(&mut set) } != 0 {
            return;
        }
        let devices: Vec<*mut c_void> = (0..self.count()).filter_map(|place| self.device(place).ok()).collect();
        // SAFETY: handles of NVML's own, and the set that it has just made. A GPU that has no such events is left out.
        let taken = devices.into_iter().filter(|device| unsafe { (events.register)(*device, XID_EVENTS, set) } == 0);
        self.set = (taken.count() > 0).then_some(set);
    }

    fn count(&self) -> u32 {
        let mut count = 0;
        // SAFETY: the output is a local.
        if unsafe { (self.nvml.count)(&mut count) } == 0 { count.min(MAX_GPUS) } else { 0 }
    }

    fn device(&self, place: u32) -> Result<*mut c_void, u32> {
        let mut device = std::ptr::null_mut();
        // SAFETY: the output is a local.
        match unsafe { (self.nvml.handle)(place, &mut device) } {
            0 => Ok(device),
            code => Err(code),
        }
    }

    fn minor(&self, device: *mut c_void) -> Result<u32, u32> {
        let mut minor = 0;
        // SAFETY: the output is a local; the handle is NVML's own.
        match unsafe { (self.nvml.minor)(device, &mut minor) } {
            0 => Ok(minor),
            code => Err(code),
        }
    }

    /// How each GPU is.
    pub(super) fn conditions(&mut self) -> Vec<Reading> {
        let mut readings = Vec::new();
        for place in 0..self.count() {
            let told = self.device(place).and_then(|device| Ok((self.minor(device)?, device)));
            if let Ok((minor, _)) = told {
                self.minors.insert(place, minor);
            }
            // Of one that never told its number nobody could say which it is.
            let Some(minor) = self.minors.get(&place).copied() else { continue };
            let condition = match told {
                Ok((_, device)) => self.condition(minor, device),
                Err(code) => of_code(code),
            };
            readings.push(condition.reading(minor));
        }
        readings
    }

    fn condition(&self, minor: u32, device: *mut c_void) -> Condition {
        match (self.recovery_action(device), self.xids.get(&minor)) {
            (Ok(Some(0)), _) | (Ok(None), None) => Condition::Fine,
            (Ok(Some(action)), _) => Condition::Recovery(action),
            (Ok(None), Some(xid)) => Condition::Xid(*xid),
            (Err(code), _) => of_code(code),
        }
    }

    /// What it takes to recover the GPU; none where its driver does not tell.
    fn recovery_action(&self, device: *mut c_void) -> Result<Option<u32>, u32> {
        let Some(fields) = self.nvml.fields else { return Ok(None) };
        let mut field =
            FieldValue { field: RECOVERY_ACTION, scope: 0, timestamp: 0, latency: 0, kind: 0, code: 0, value: 0 };
        // SAFETY: one field, in a local.
        let code = unsafe { fields(device, 1, &mut field) };
        match (code, field.code) {
            (0, 0) => Ok(u32::try_from(field.value & u64::from(u32::MAX)).ok()),
            (code, inner) if [code, inner].contains(&GPU_IS_LOST) => Err(GPU_IS_LOST),
            (code, inner) if [code, inner].contains(&RESET_REQUIRED) => Err(RESET_REQUIRED),
            _ => Ok(None),
        }
    }

    /// Waits for an error of hardware, at most so long.
    pub(super) fn wait(&mut self, time: Duration) {
        let (Some(events), Some(set)) = (&self.nvml.events, self.set) else { return std::thread::sleep(time) };
        let nothing =
            EventData { device: std::ptr::null_mut(), kind: 0, data: 0, gpu_instance: 0, compute_instance: 0 };
        let mut event = nothing;
        let start = std::time::Instant::now();
        let millis = u32::try_from(time.as_millis()).unwrap_or(u32::MAX);
        // SAFETY: the set is NVML's, the output a local.
        let code = unsafe { (events.wait)(set, &mut event, millis) };
        if code == 0 && event.kind == XID_EVENTS && HARDWARE.contains(&event.data) {
            let xid = u32::try_from(event.data).unwrap_or(0);
            if let Ok(minor) = self.minor(event.device) {
                self.xids.insert(minor, xid);
            }
            return;
        }
        // Errors of programs, and a set that fails at once, do not make us faster.
        std::thread::sleep(time.saturating_sub(start.elapsed()));
    }
}

fn of_code(code: u32) -> Condition {
    match code {
        RESET_REQUIRED => Condition::Recovery(0),
        _ => Condition::Lost,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two GPUs, 3 and 1. Files beside the library say what becomes of them: `lost` and `action` of the second, `xid` of the
    /// first, which is told as an event once.
    const FAKE: &str = r#"
        #include <stdio.h>
        #include <string.h>
        #include <unistd.h>
        typedef struct { unsigned pid; unsigned long long used; unsigned gi, ci; } info;
        typedef struct { unsigned id, scope; long long at, latency; unsigned kind, code; unsigned long long value; } field;
        typedef struct { void *device; unsigned long long kind, data; unsigned gi, ci; } event;
        static long told(const char *name) {
            char path[512]; long value = -1; FILE *file;
            snprintf(path, sizeof path, "DIRECTORY/%s", name);
            if ((file = fopen(path, "r"))) { if (fscanf(file, "%ld", &value) != 1) value = 0; fclose(file); }
            return value;
        }
        int nvmlInit_v2(void) { return 0; }
        int nvmlDeviceGetCount_v2(unsigned *n) { *n = 2; return 0; }
        int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **h) {
            if (i == 1 && told("lost") >= 0) return 15;
            *h = (void *)(unsigned long)(i + 1);
            return 0;
        }
        int nvmlDeviceGetMinorNumber(void *h, unsigned *n) { *n = h == (void *)1 ? 3 : 1; return 0; }
        int nvmlDeviceGetComputeRunningProcesses_v3(void *h, unsigned *n, info *p) { *n = 0; return 0; }
        int nvmlDeviceGetFieldValues(void *h, int n, field *f) {
            long action = h == (void *)2 ? told("action") : -1;
            if (n != 1 || f->id != 230) return 2;
            f->code = action < 0 ? 3 : 0;
            f->value = action;
            return 0;
        }
        int nvmlEventSetCreate(void **set) { *set = (void *)9; return 0; }
        int nvmlDeviceRegisterEvents(void *h, unsigned long long kinds, void *set) { return set != (void *)9 || kinds != 8; }
        int nvmlEventSetWait_v2(void *set, event *e, unsigned millis) {
            char path[512];
            long xid = told("xid");
            if (xid < 0) return 10;
            snprintf(path, sizeof path, "DIRECTORY/xid");
            unlink(path);
            *e = (event){ (void *)1, 8, xid, ~0u, ~0u };
            return 0;
        }"#;

    #[test]
    fn each_gpu_is_as_its_driver_tells_and_comes_back() {
        let directory = testkit::directory();
        let source = FAKE.replace("DIRECTORY", &directory.display().to_string());
        let nvml = Nvml::load(&directory.shared_library("libnvidia-ml.so.1", &source)).unwrap();
        let mut watch = Watch::new(&nvml);
        let now = |watch: &mut Watch<'_>| {
            watch.wait(Duration::ZERO);
            let readings = watch.conditions();
            readings.iter().map(|one| (one.gpu, Condition::of(one).unwrap())).collect::<Vec<_>>()
        };
        let fine = (3, Condition::Fine);
        assert_eq!(now(&mut watch), [fine, (1, Condition::Fine)]);
        directory.write("action", "1");
        assert_eq!(now(&mut watch), [fine, (1, Condition::Recovery(1))], "the driver asks for a reset");
        directory.write("action", "0");
        assert_eq!(now(&mut watch), [fine, (1, Condition::Fine)], "it was reset");
        directory.write("lost", "");
        assert_eq!(now(&mut watch), [fine, (1, Condition::Lost)], "by the number that it told before");
        std::fs::remove_file(directory.join("lost")).unwrap();
        directory.write("xid", "31");
        assert_eq!(now(&mut watch), [fine, (1, Condition::Fine)], "a kernel's own fault is nobody else's");
        directory.write("xid", "79");
        assert_eq!(now(&mut watch), [(3, Condition::Xid(79)), (1, Condition::Fine)]);
        assert_eq!(now(&mut watch), [(3, Condition::Xid(79)), (1, Condition::Fine)], "it stays");
        let mut next = Watch::new(&nvml);
        assert_eq!(now(&mut next), [fine, (1, Condition::Fine)], "until NVML starts again");
    }

    #[test]
    fn a_library_without_events_is_asked_all_the_same() {
        let directory = testkit::directory();
        let begin = FAKE.find("int nvmlEventSetCreate").unwrap();
        let source = FAKE[..begin].replace("DIRECTORY", &directory.display().to_string());
        let nvml = Nvml::load(&directory.shared_library("libnvidia-ml.so.1", &source)).unwrap();
        let mut watch = Watch::new(&nvml);
        watch.wait(Duration::ZERO);
        assert_eq!(watch.conditions().len(), 2);
    }
}
