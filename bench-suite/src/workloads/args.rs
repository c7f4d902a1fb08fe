//! A small getopt: workload options look as the original programs' do.

/// An option and its value.
pub type Parsed = (char, Option<String>);

/// Parses `args` after the getopt string `spec` (`"g:p"`: `-g VALUE` and `-p`). `workload` and `usage` go into the
/// error, which is one line.
pub fn parse(
    workload: &str,
    spec: &str,
    usage: &str,
    args: &[String],
) -> Result<Vec<Parsed>, String> {
    let mut parsed = Vec::new();
    let mut words = args.iter();
    while let Some(word) = words.next() {
        let Some(letters) = word.strip_prefix('-').filter(|letters| !letters.is_empty()) else {
            return Err(format!(
                "{workload}: '{word}' is not an option; valid: {usage}"
            ));
        };
        for (at, letter) in letters.char_indices() {
            let takes_value = match spec.find(letter).filter(|_| letter != ':') {
                None => {
                    return Err(format!(
                        "{workload}: unknown option -{letter}; valid: {usage}"
                    ));
                }
                Some(i) => spec[i + 1..].starts_with(':'),
            };
            if !takes_value {
                parsed.push((letter, None));
                continue;
            }
            let attached = &letters[at + letter.len_utf8()..];
            let value = if attached.is_empty() {
                words.next().cloned()
            } else {
                Some(attached.to_owned())
            };
            let value = value.ok_or_else(|| {
                format!("{workload}: option -{letter} needs a value; valid: {usage}")
            })?;
            parsed.push((letter, Some(value)));
            break;
        }
    }
    Ok(parsed)
}

/// The number of an option, within `range`.
pub fn number(
    workload: &str,
    letter: char,
    value: &str,
    range: std::ops::RangeInclusive<usize>,
) -> Result<usize, String> {
    value
        .trim()
        .parse()
        .ok()
        .filter(|n| range.contains(n))
        .ok_or_else(|| {
            format!(
                "{workload}: -{letter} '{value}': not a number from {} to {}",
                range.start(),
                range.end()
            )
        })
}

/// The numbers of an option, separated by commas, none of them twice.
pub fn numbers(
    workload: &str,
    letter: char,
    value: &str,
    range: std::ops::RangeInclusive<usize>,
) -> Result<Vec<usize>, String> {
    let mut all = Vec::new();
    for part in value.split(',') {
        let n = number(workload, letter, part, range.clone())?;
        if all.contains(&n) {
            return Err(format!(
                "{workload}: -{letter} '{value}': {n} is listed twice"
            ));
        }
        all.push(n);
    }
    Ok(all)
}

/// The words of an option, separated by commas, each among `valid` and none of them twice.
pub fn words(
    workload: &str,
    letter: char,
    value: &str,
    valid: &[&'static str],
) -> Result<Vec<&'static str>, String> {
    let mut all = Vec::new();
    for part in value.split(',') {
        let word = valid.iter().find(|word| **word == part).ok_or_else(|| {
            format!(
                "{workload}: -{letter} '{part}'; valid: {}",
                valid.join(", ")
            )
        })?;
        if all.contains(word) {
            return Err(format!(
                "{workload}: -{letter} '{value}': {word} is listed twice"
            ));
        }
        all.push(*word);
    }
    Ok(all)
}

/// The length of time of an option, in seconds.
pub fn seconds(workload: &str, letter: char, value: &str) -> Result<std::time::Duration, String> {
    value
        .parse()
        .ok()
        .filter(|seconds| (0.001..=3600.0).contains(seconds))
        .map(std::time::Duration::from_secs_f64)
        .ok_or_else(|| {
            format!("{workload}: -{letter} '{value}': not a number of seconds from 0.001 to 3600")
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn attached_and_separate_values() {
        let want = vec![
            ('p', None),
            ('g', Some("1,2".to_owned())),
            ('l', Some("5".to_owned())),
        ];
        assert_eq!(
            parse("w", "g:l:p", "", &words("-p -g 1,2 -l5")).unwrap(),
            want
        );
        assert_eq!(
            parse("w", "g:l:p", "", &words("-pg1,2 -l 5")).unwrap(),
            want
        );
    }

    #[test]
    fn errors_name_the_option() {
        assert!(
            parse("w", "g:p", "-g N -p", &words("-x"))
                .unwrap_err()
                .contains("-x; valid: -g N -p")
        );
        assert!(
            parse("w", "g:p", "", &words("-g"))
                .unwrap_err()
                .contains("-g needs a value")
        );
        assert!(
            parse("w", "g:p", "", &words("12"))
                .unwrap_err()
                .contains("'12'")
        );
        assert!(
            number("w", 'g', "0", 1..=9)
                .unwrap_err()
                .contains("-g '0': not a number from 1 to 9")
        );
        assert!(
            numbers("w", 'g', "1,1", 1..=9)
                .unwrap_err()
                .contains("1 is listed twice")
        );
    }
}
