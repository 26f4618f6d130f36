//! Where a card sits on the bus.

use std::fmt;

/// Domain, bus, device; shown as NVML writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PciAddress {
    pub domain: u32,
    pub bus: u32,
    pub device: u32,
}

impl PciAddress {
    /// Reads `[domain:]bus:device[.0]`, in hexadecimal.
    pub fn parse(text: &str) -> Option<PciAddress> {
        let number = |text: &str| u32::from_str_radix(text, 16).ok().filter(|_| !text.starts_with('+'));
        let (rest, device) = text.trim().rsplit_once(':')?;
        let (device, function) = device.split_once('.').unwrap_or((device, "0"));
        let (domain, bus) = rest.split_once(':').unwrap_or(("0", rest));
        (number(function)? == 0).then_some(())?;
        Some(PciAddress { domain: number(domain)?, bus: number(bus)?, device: number(device)? })
    }
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08X}:{:02X}:{:02X}.0", self.domain, self.bus, self.device)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_in_every_form() {
        let address = PciAddress { domain: 0, bus: 0x18, device: 0 };
        for text in ["0000:18:00.0", "00000000:18:00.0", "18:00.0", "00000000:18:00", " 0:18:0.0"] {
            assert_eq!(PciAddress::parse(text), Some(address), "{text}");
        }
        assert_eq!(PciAddress::parse("0001:AF:1f.0"), Some(PciAddress { domain: 1, bus: 0xaf, device: 0x1f }));
        for text in ["", "18", "x:y:z", "0000:18:00.1", "1:2:3:4", "+1:00.0"] {
            assert_eq!(PciAddress::parse(text), None, "{text}");
        }
        assert_eq!(address.to_string(), "00000000:18:00.0");
    }
}
