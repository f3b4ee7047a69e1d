//! `strftime` for chat templates: the date of a moment, in UTC.

/// Formats the moment `seconds` after 1970-01-01 00:00 UTC as Python's `strftime` does. Directives that no template uses are copied
/// unchanged.
pub(super) fn strftime(format: &str, seconds: u64) -> String {
    let day = seconds / SECONDS_PER_DAY;
    let second_of_day = seconds % SECONDS_PER_DAY;
    let (year, month, day_of_month) = date(day);
    let (hour, minute, second) = (second_of_day / 3600, second_of_day / 60 % 60, second_of_day % 60);
    let month_name = MONTHS[month as usize - 1];
    // 1970-01-01 was a Thursday.
    let weekday_name = WEEKDAYS[((day + 3) % 7) as usize];

    let mut text = String::new();
    let mut letters = format.chars();
    while let Some(letter) = letters.next() {
        if letter != '%' {
            text.push(letter);
            continue;
        }
        match letters.next() {
            Some('Y') => text += &year.to_string(),
            Some('y') => text += &format!("{:02}", year % 100),
            Some('m') => text += &format!("{month:02}"),
            Some('B') => text += month_name,
            Some('b') => text += &month_name[..3],
            Some('d') => text += &format!("{day_of_month:02}"),
            Some('A') => text += weekday_name,
            Some('a') => text += &weekday_name[..3],
            Some('H') => text += &format!("{hour:02}"),
            Some('I') => text += &format!("{:02}", (hour + 11) % 12 + 1),
            Some('p') => text += if hour < 12 { "AM" } else { "PM" },
            Some('M') => text += &format!("{minute:02}"),
            Some('S') => text += &format!("{second:02}"),
            Some('%') => text.push('%'),
            Some(other) => text.extend(['%', other]),
            None => text.push('%'),
        }
    }
    text
}

const SECONDS_PER_DAY: u64 = 24 * 60 * 60;
const WEEKDAYS: [&str; 7] = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// (year, month from 1, day from 1) of the day `days` after 1970-01-01.
fn date(days: u64) -> (u64, u64, u64) {
    let mut left = days;
    let mut year = 1970;
    while left >= days_in_year(year) {
        left -= days_in_year(year);
        year += 1;
    }
    let february = days_in_year(year) - 337;
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if left < length {
            break;
        }
        left -= length;
        month += 1;
    }
    (year, month, left + 1)
}

fn days_in_year(year: u64) -> u64 {
    let leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    if leap { 366 } else { 365 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_read_as_python_writes_them() {
        assert_eq!(strftime("%d %b %Y", 0), "01 Jan 1970");
        assert_eq!(strftime("%A %Y-%m-%d %H:%M:%S", 951_827_696), "Tuesday 2000-02-29 12:34:56");
        assert_eq!(strftime("%a %d %B %y, %I %p 100%%", 1_798_761_599), "Thu 31 December 26, 11 PM 100%");
        assert_eq!(strftime("%Q%", 0), "%Q%");
    }
}
