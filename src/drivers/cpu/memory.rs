//! The nominal size of a machine's memory. Pure.

/// GiB in a KiB count.
const KIB_PER_GIB: u64 = 1 << 20;

/// The nominal size in GB of a machine whose kernel manages `kib`.
///
/// The kernel shows less than is installed: firmware reserves some, and page structures take 1.6 %. Policies refer to
/// the installed size, so this is the next "round" size, at most 5 % larger. Round means a multiple of an eighth of a
/// power of two (502.6 GiB → 512, 376 → 384, 30.9 → 32), or a finer fraction if none is that near. Below half a GiB the
/// size is unknown.
pub(super) fn nominal_gb(kib: u64) -> Option<i64> {
    let octave = 1_u64.checked_shl(kib.checked_ilog2()?)?;
    let size = [8, 16, 32, 64]
        .into_iter()
        .filter_map(|parts| kib.checked_next_multiple_of((octave / parts).max(KIB_PER_GIB)))
        .find(|&size| size - kib <= kib / 20)
        // Below 8 GiB even whole GiB may be farther away than that: take the nearest.
        .unwrap_or((kib.saturating_add(KIB_PER_GIB / 2)) / KIB_PER_GIB * KIB_PER_GIB);
    i64::try_from(size / KIB_PER_GIB).ok().filter(|&gb| gb > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_server_reports_the_installed_size() {
        for (kib, gb) in [
            (527_031_224, Some(512)),
            (529_428_392, Some(512)),
            (263_735_716, Some(256)),
            (131_900_000, Some(128)),
            (196_592_900, Some(192)),
            (395_000_000, Some(384)),
            (1_056_000_000, Some(1024)),
            (99_202_688, Some(96)),
            (32_489_496, Some(32)),
            (16_331_824, Some(16)),
            (8_010_000, Some(8)),
            (4_025_000, Some(4)),
            (280_840, None),
            (0, None),
        ] {
            assert_eq!(nominal_gb(kib), gb, "{kib} KiB");
        }
    }

    #[test]
    fn a_size_far_from_round_is_not_rounded_far() {
        assert_eq!(nominal_gb(500 << 20), Some(512));
        assert_eq!(nominal_gb(450 << 20), Some(464));
        assert_eq!(nominal_gb(257 << 20), Some(264));
    }

    proptest! {
        #[test]
        fn more_memory_never_says_less_than_there_is(kib in any::<u64>()) {
            if let Some(gb) = nominal_gb(kib) {
                let claimed = u128::from(gb.cast_unsigned()) * u128::from(KIB_PER_GIB);
                prop_assert!(claimed + u128::from(KIB_PER_GIB / 2) >= u128::from(kib));
                prop_assert!(claimed <= u128::from(kib) + u128::from(kib / 20).max(u128::from(KIB_PER_GIB / 2)));
            }
        }
    }
}
