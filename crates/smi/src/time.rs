//! The time, in UTC: what the zone of the container's time is would be a question to a C library.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Since 1970.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment(pub Duration);

impl Moment {
    pub(crate) fn now() -> Self {
        Self(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
    }

    /// Year, month (1 to 12), day.
    fn date(self) -> (u64, u64, u64) {
        let days = self.0.as_secs() / 86_400;
        // Years that begin in March have the leap day at their end; 719468 days before 1970 one of them begins, and with it
        // a period of 400 years.
        let day = days + 719_468;
        let (era, of_era) = (day / 146_097, day % 146_097);
        let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
        let of_year = of_era - (365 * year + year / 4 - year / 100);
        let month = (5 * of_year + 2) / 153;
        let day = of_year - (153 * month + 2) / 5 + 1;
        let (month, later) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
        (era * 400 + year + later, month, day)
    }

    fn clock(self) -> (u64, u64, u64) {
        let seconds = self.0.as_secs() % 86_400;
        (seconds / 3_600, seconds / 60 % 60, seconds % 60)
    }

    /// Such as `Thu Jan  1 00:00:00 1970`.
    pub(crate) fn words(self) -> String {
        const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
        const MONTHS: [&str; 12] =
            ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
        let ((year, month, day), (hour, minute, second)) = (self.date(), self.clock());
        let weekday = DAYS[(self.0.as_secs() / 86_400 % 7) as usize];
        let month = MONTHS[(month as usize - 1) % 12];
        format!("{weekday} {month} {day:2} {hour:02}:{minute:02}:{second:02} {year}")
    }

    /// Such as `1970/01/01 00:00:00.000`.
    pub(crate) fn stamp(self) -> String {
        let ((year, month, day), (hour, minute, second)) = (self.date(), self.clock());
        let millis = self.0.subsec_millis();
        format!("{year}/{month:02}/{day:02} {hour:02}:{minute:02}:{second:02}.{millis:03}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_those_of_the_calendar() {
        let at = |seconds| Moment(Duration::from_secs(seconds));
        assert_eq!(at(0).words(), "Thu Jan  1 00:00:00 1970");
        assert_eq!(at(951_782_400).words(), "Tue Feb 29 00:00:00 2000");
        assert_eq!(at(951_868_799).stamp(), "2000/02/29 23:59:59.000");
        assert_eq!(at(1_763_493_673).words(), "Tue Nov 18 19:21:13 2025");
        assert_eq!(at(4_107_542_400).stamp(), "2100/03/01 00:00:00.000");
        assert_eq!(Moment(Duration::from_millis(1_735_689_599_999)).stamp(), "2024/12/31 23:59:59.999");
    }
}
