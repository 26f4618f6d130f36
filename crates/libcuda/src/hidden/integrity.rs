//! The question by which a runtime makes sure that it talks to a driver: a keyed digest over what both can see.

use hmac::{KeyInit, Mac, SimpleHmac};
use md2::Md2;

use cuda_abi::constants::device_attribute;
use cuda_abi::error::*;

use super::{CUDART, INTEGRITY};
use crate::session;

const KEY: [u8; 16] =
    [0x14, 0x6a, 0xdd, 0xae, 0x53, 0xa9, 0xa7, 0x52, 0xaa, 0x08, 0x41, 0x36, 0x0b, 0xf5, 0x5a, 0x9f];

/// The answers to the first two of the three questions are constants.
const FIRST: [u64; 2] = [0x3341_181c_03cb_675c, 0x8ed3_83aa_1f4c_d1e8];
const SECOND: [u64; 2] = [0x1841_181c_03cb_675c, 0x8ed3_83aa_1f4c_d1e8];

/// A device as the digest sees it: UUID, PCI domain, bus and device.
type Seen = ([u8; 16], [i32; 3]);

struct Question {
    driver_version: u32,
    version: u32,
    process: u32,
    thread: u32,
    cudart_table: u64,
    integrity_table: u64,
    function: u64,
    seconds: u64,
}

pub(super) unsafe extern "C" fn check(version: u32, seconds: u64, answer: *mut [u8; 16]) -> CUresult {
    let digest = match version % 10 {
        0 => constant(FIRST),
        1 => constant(SECOND),
        _ => {
            let Ok(session) = session::get() else { return CUDA_ERROR_NOT_INITIALIZED };
            let at = |device: &crate::device::Device, number| device.attribute(number).unwrap_or(0);
            let seen = session
                .devices
                .iter()
                .map(|device| {
                    (
                        device.uuid,
                        [
                            device_attribute::PCI_DOMAIN_ID,
                            device_attribute::PCI_BUS_ID,
                            device_attribute::PCI_DEVICE_ID,
                        ]
                        .map(|number| at(device, number)),
                    )
                })
                .collect::<Vec<Seen>>();
            let question = Question {
                driver_version: session.devices.driver_version,
                version,
                process: std::process::id(),
                // SAFETY: no arguments.
                thread: unsafe { libc::pthread_self() } as u32,
                cudart_table: CUDART.address() as u64,
                integrity_table: INTEGRITY.address() as u64,
                function: INTEGRITY.0[1] as u64,
                seconds,
            };
            digest(&question, &seen)
        }
    };
    // SAFETY: the caller passes room for 16 bytes.
    unsafe { answer.write(digest) };
    CUDA_SUCCESS
}

fn constant([low, high]: [u64; 2]) -> [u8; 16] {
    (u128::from(low) | u128::from(high) << 64).to_le_bytes()
}

fn digest(question: &Question, devices: &[Seen]) -> [u8; 16] {
    let mut mac = SimpleHmac::<Md2>::new_from_slice(&KEY).expect("any key length is fine");
    for word in [question.driver_version, question.version, question.process, question.thread] {
        mac.update(&word.to_le_bytes());
    }
    for word in [question.cudart_table, question.integrity_table, question.function, question.seconds] {
        mac.update(&word.to_le_bytes());
    }
    for (uuid, place) in devices {
        mac.update(uuid);
        place.iter().for_each(|number| mac.update(&number.to_le_bytes()));
    }
    mac.finalize().into_bytes().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_is_what_a_real_driver_gave() {
        let question = Question {
            driver_version: 12020,
            version: 11082,
            process: 0x4d08,
            thread: 0x2b78,
            cudart_table: 0x7ff8_c807_17f0,
            integrity_table: 0x7ff8_c825_e4b0,
            function: 0x7ff8_c7dd_0ad0,
            seconds: 0x64a3_65ee,
        };
        let uuid = 0x6722_cbcf_c661_f292_74d6_ed23_2a32_131c_u128.to_be_bytes();
        let known = 0x7a70_14f2_2846_c3a7_84cd_bf42_3331_f1ea_u128.to_be_bytes();
        assert_eq!(digest(&question, &[(uuid, [0, 4, 0])]), known);
    }
}
