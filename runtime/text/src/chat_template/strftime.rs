//! `strftime` for chat templates: the date of a moment, in UTC.

/// Formats the moment `seconds` after 1970-01-01 00:00 UTC as Python's `strftime` does. Directives that no template uses are copied
/// unchanged.
pub(super) fn strftime(format: &str, seconds: u64) -> String {
    let day = seconds / SECONDS_PER_DAY;
    let second_of_day = seconds % SECONDS_PER_DAY;
    let (year, day_of_year) = year_of(day);
    let (month, day_of_month) = month_of(year, day_of_year);
    let (hour, minute, second) = (second_of_day / 3600, second_of_day / 60 % 60, second_of_day % 60);
    let month_name = MONTHS[month as usize - 1];
    // 1970-01-01 was a Thursday.
    let weekday_name = WEEKDAYS[((day + 3) % 7) as usize];

    let directive = |letter: char| {
        Some(match letter {
            'Y' => year.to_string(),
            'y' => format!("{:02}", year % 100),
            'm' => format!("{month:02}"),
            'B' => month_name.to_owned(),
            'b' => month_name[..3].to_owned(),
            'd' => format!("{day_of_month:02}"),
            'j' => format!("{:03}", day_of_year + 1),
            'A' => weekday_name.to_owned(),
            'a' => weekday_name[..3].to_owned(),
            'H' => format!("{hour:02}"),
            'I' => format!("{:02}", (hour + 11) % 12 + 1),
            'p' => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            'M' => format!("{minute:02}"),
            'S' => format!("{second:02}"),
            '%' => "%".to_owned(),
            _ => return None,
        })
    };
    let mut text = String::new();
    let mut rest = format;
    while let Some((before, behind)) = rest.split_once('%') {
        text += before;
        // `%-d` is `%d` without leading zeros.
        let (name, is_short) = behind.strip_prefix('-').map_or((behind, false), |name| (name, true));
        match name.chars().next().and_then(|letter| Some((letter, directive(letter)?))) {
            Some((letter, value)) => {
                let short = value.trim_start_matches('0');
                text += if !is_short {
                    &value
                } else if short.is_empty() {
                    "0"
                } else {
                    short
                };
                rest = &name[letter.len_utf8()..];
            }
            None => {
                text.push('%');
                rest = behind;
            }
        }
    }
    text + rest
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

/// Year of the day `days` after 1970-01-01, and the days of that year before it.
fn year_of(days: u64) -> (u64, u64) {
    let mut left = days;
    let mut year = 1970;
    while left >= days_in_year(year) {
        left -= days_in_year(year);
        year += 1;
    }
    (year, left)
}

/// (month from 1, day of the month from 1) of a day of `year`.
fn month_of(year: u64, day_of_year: u64) -> (u64, u64) {
    let mut left = day_of_year;
    let february = days_in_year(year) - 337;
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if left < length {
            break;
        }
        left -= length;
        month += 1;
    }
    (month, left + 1)
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
        assert_eq!(strftime("%-d/%-m %-H %j", 951_827_696), "29/2 12 060");
        assert_eq!(strftime("%-H:%-M %5", 0), "0:0 %5");
        assert_eq!(strftime("%Q%-Q%", 0), "%Q%-Q%");
    }
}
