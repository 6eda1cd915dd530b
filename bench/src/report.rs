//! Figures and the bars they are held to.

use serde::Serialize;

#[derive(Debug, Default, Serialize)]
pub struct Report {
    figures: Vec<Figure>,
}

#[derive(Debug, Serialize)]
struct Figure {
    name: String,
    value: f64,
    unit: &'static str,
    bar: Option<Bar>,
    met: Option<bool>,
}

#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bar {
    AtMost(f64),
    AtLeast(f64),
}

impl Report {
    pub fn figure(&mut self, name: &str, value: f64, unit: &'static str) {
        self.add(name, value, unit, None);
    }

    pub fn bar(&mut self, name: &str, value: f64, unit: &'static str, bar: Bar) {
        self.add(name, value, unit, Some(bar));
    }

    fn add(&mut self, name: &str, value: f64, unit: &'static str, bar: Option<Bar>) {
        let met = bar.map(|bar| match bar {
            Bar::AtMost(limit) => value <= limit,
            Bar::AtLeast(limit) => value >= limit,
        });
        let verdict = match (bar, met) {
            (Some(Bar::AtMost(limit)), Some(met)) => {
                format!("bar ≤ {limit} {}", if met { "met" } else { "MISSED" })
            }
            (Some(Bar::AtLeast(limit)), Some(met)) => {
                format!("bar ≥ {limit} {}", if met { "met" } else { "MISSED" })
            }
            _ => String::new(),
        };
        println!("  {name:<58} {value:>10.2} {unit:<5} {verdict}");
        self.figures.push(Figure {
            name: name.into(),
            value,
            unit,
            bar,
            met,
        });
    }

    pub fn met(&self) -> usize {
        self.figures
            .iter()
            .filter(|figure| figure.met == Some(true))
            .count()
    }

    pub fn bars(&self) -> usize {
        self.figures
            .iter()
            .filter(|figure| figure.met.is_some())
            .count()
    }
}

/// A sorted sample.
pub struct Sample(Vec<f64>);

impl Sample {
    pub fn new(mut values: Vec<f64>) -> Self {
        assert!(!values.is_empty(), "a sample needs values");
        values.sort_by(f64::total_cmp);
        Self(values)
    }

    pub fn quantile(&self, q: f64) -> f64 {
        let index = ((self.0.len() - 1) as f64 * q).round() as usize;
        self.0[index]
    }

    pub fn median(&self) -> f64 {
        self.quantile(0.5)
    }
}
