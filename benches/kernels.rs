//! The kernels at every level of this processor: the rows of the speed contract, counting, and medians in parts.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use gradscan::kernel::batch::{row_stats_f32, row_stats_f64};
use gradscan::kernel::level::Level;
use gradscan::kernel::select::{Scratch, median_f64, median_parts_f64};
use gradscan::kernel::spikes::count_above_f64;
use gradscan::kernel::{naive, nonfinite};

/// Reproducible log-normal values: what gradient norms look like.
fn norms(n: usize) -> Vec<f64> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut uniform = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        ((state >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    };
    let mut normal = move || (-2.0 * uniform().ln()).sqrt() * (std::f64::consts::TAU * uniform()).cos();
    (0..n).map(|_| (0.5 * normal()).exp()).collect()
}

fn narrowed(wide: &[f64]) -> Vec<f32> {
    wide.iter().map(|&x| x as f32).collect()
}

fn rows(c: &mut Criterion) {
    for (count, length) in [(2_000, 10_000), (20_000, 500)] {
        let wide = norms(count * length);
        let narrow = narrowed(&wide);
        let mut group = c.benchmark_group(format!("row_stats/{count}x{length}"));
        group.throughput(Throughput::Elements(wide.len() as u64)).sample_size(10);
        for level in Level::all_available() {
            let mut scratch = Scratch::new();
            group.bench_function(BenchmarkId::new("f64", level.name()), |b| {
                b.iter(|| {
                    let rows = black_box(&wide).chunks_exact(length);
                    rows.map(|row| row_stats_f64(level, row, 10.0, &mut scratch).spikes).sum::<u64>()
                });
            });
            group.bench_function(BenchmarkId::new("f32", level.name()), |b| {
                b.iter(|| {
                    let rows = black_box(&narrow).chunks_exact(length);
                    rows.map(|row| row_stats_f32(level, row, 10.0, &mut scratch).spikes).sum::<u64>()
                });
            });
        }
        group.finish();
    }
}

fn medians(c: &mut Criterion) {
    let series = norms(4_000_000);
    let parts: Vec<&[f64]> = series.chunks(300_000).collect();
    for (name, values) in [("500", &series[..500]), ("10k", &series[..10_000])] {
        let mut group = c.benchmark_group(format!("median/{name}"));
        group.throughput(Throughput::Elements(values.len() as u64));
        group.bench_function("naive", |b| b.iter(|| naive::median(black_box(values))));
        for level in Level::all_available() {
            let mut scratch = Scratch::new();
            group.bench_function(level.name(), |b| b.iter(|| median_f64(level, black_box(values), &mut scratch)));
        }
        group.finish();
    }
    let mut group = c.benchmark_group("median_parts/4M");
    group.throughput(Throughput::Elements(series.len() as u64)).sample_size(10);
    for level in Level::all_available() {
        let mut scratch = Scratch::new();
        group.bench_function(level.name(), |b| {
            b.iter(|| median_parts_f64(level, black_box(&parts), Some(-1.0), &mut scratch));
        });
    }
    group.finish();
}

fn counts(c: &mut Criterion) {
    let wide = norms(12_500_000);
    let narrow = narrowed(&[&wide[..], &wide[..]].concat());
    let half: Vec<u16> = narrow.iter().map(|x| (x.to_bits() >> 16) as u16).collect();
    let full = vec![f32::NAN; narrow.len()];
    let mut group = c.benchmark_group("count_nonfinite");
    group.sample_size(10);
    for level in Level::all_available() {
        let mut add = |name: &str, bytes: usize, count: &dyn Fn() -> nonfinite::Tally| {
            group.throughput(Throughput::Bytes(bytes as u64));
            group.bench_function(BenchmarkId::new(name, level.name()), |b| b.iter(|| black_box(count())));
        };
        add("f64", size_of_val(&wide[..]), &|| nonfinite::count_f64(level, black_box(&wide)));
        add("f32", size_of_val(&narrow[..]), &|| nonfinite::count_f32(level, black_box(&narrow)));
        add("f32 all NaN", size_of_val(&full[..]), &|| nonfinite::count_f32(level, black_box(&full)));
        add("bf16", size_of_val(&half[..]), &|| nonfinite::count_bf16(level, black_box(&half)));
    }
    group.finish();

    let mut group = c.benchmark_group("count_above/10k");
    group.throughput(Throughput::Elements(10_000));
    for level in Level::all_available() {
        group.bench_function(level.name(), |b| b.iter(|| count_above_f64(level, black_box(&wide[..10_000]), 3.0)));
    }
    group.finish();
}

criterion_group!(benches, rows, medians, counts);
criterion_main!(benches);
