/** SVG charts of results, without a browser: a bar for each median, a whisker from minimum to maximum. */

import { BarChart, CustomChart } from 'echarts/charts';
import { GridComponent, LegendComponent, TitleComponent } from 'echarts/components';
import * as echarts from 'echarts/core';
import { SVGRenderer } from 'echarts/renderers';
import type { Metric } from '../runner/result.js';

echarts.use([BarChart, CustomChart, GridComponent, LegendComponent, TitleComponent, SVGRenderer]);

/** Metrics of one unit and one direction, of one or more results. */
export interface ChartData {
  readonly title: string;
  readonly unit: string;
  /** One series per result, by distinct name; metrics by row name. */
  readonly series: readonly { readonly name: string; readonly metrics: readonly Metric[] }[];
  /** For a split chart: extremes of all parts, which share a scale. */
  readonly whole?: Range;
}

/** Okabe and Ito's palette, safe for most colour-blind readers. */
const COLORS = ['#0072b2', '#e69f00', '#009e73', '#cc79a7', '#56b4e9', '#d55e00'];
const WIDTH = 900;
/** Height of a bar with the space around it. */
const SLOT = 22;
const AROUND = 110;
/** Minimum and maximum width of names. */
const LABEL = { least: 120, most: 420, font: 11 };
const FONT = 'system-ui, Arial, DejaVu Sans, sans-serif';

/** The reader's font is unknown: average letter width of the widest common font. */
const LETTER = 0.62;
echarts.setPlatformAPI({
  measureText: (text: string, font?: string) => {
    const size = Number(/([\d.]+)px/.exec(font ?? '')?.[1] ?? 12);
    return { width: text.length * size * LETTER };
  },
});

/** A row of the vertical axis: the bar of one series, or the space between two names (`series` -1). */
interface Slot {
  readonly label: string;
  readonly series: number;
  readonly metric?: Metric;
}

/** The library caches text widths in a plain object: this key would write to Object.prototype. */
const harmless = (text: string) => text.replaceAll('__proto__', '__ proto__');

function harmlessData(data: ChartData): ChartData {
  return {
    ...data,
    title: harmless(data.title),
    unit: harmless(data.unit),
    series: data.series.map(({ name, metrics }) => ({
      name: harmless(name),
      metrics: metrics.map((metric) => ({ ...metric, name: harmless(metric.name) })),
    })),
  };
}

/** A self-contained SVG of a chart. */
export function chartSvg(given: ChartData): string {
  const data = harmlessData(given);
  const slots = slotsOf(data.series);
  const height = AROUND + slots.length * SLOT;
  const chart = echarts.init(null, null, { renderer: 'svg', ssr: true, width: WIDTH, height });
  try {
    chart.setOption(optionOf(data, slots));
    return chart.renderToSVGString();
  } finally {
    chart.dispose();
  }
}

/** Bars from top to bottom, grouped by name, with the name at the first; missing metrics take no space. */
function slotsOf(series: ChartData['series']): Slot[] {
  const names = [...new Set(series.flatMap(({ metrics }) => metrics.map(({ name }) => name)))];
  const groups = names.map((name) =>
    series
      .flatMap(({ metrics }, index) =>
        metrics.filter((metric) => metric.name === name).map((metric) => ({ series: index, metric })),
      )
      .map((bar, index): Slot => ({ label: index ? '' : name, ...bar })),
  );
  const space: Slot[] = series.length > 1 ? [{ label: '', series: -1 }] : [];
  return groups.flatMap((group, index) => (index ? [...space, ...group] : group));
}

function optionOf({ title, unit, series, whole }: ChartData, slots: readonly Slot[]) {
  const scale = scaleOf(whole ?? rangeOf(series.flatMap(({ metrics }) => metrics)), whole !== undefined);
  const longest = Math.max(...slots.map(({ label }) => label.length)) * LABEL.font * LETTER;
  const left = Math.min(Math.max(LABEL.least, Math.ceil(longest) + 24), LABEL.most);
  const axis = [unit, ...(scale.type === 'log' ? ['logarithmic'] : [])].filter(Boolean).join(', ');
  return {
    animation: false,
    textStyle: { fontFamily: FONT },
    backgroundColor: '#ffffff',
    color: COLORS,
    title: { text: title, left: 12, top: 8, textStyle: { fontSize: 14, fontFamily: FONT } },
    legend: series.length > 1 ? { top: 34, left: 12, data: series.map(({ name }) => name) } : { show: false },
    grid: { left, right: 40, top: 62, bottom: 48 },
    xAxis: { ...scale, name: axis, nameLocation: 'middle', nameGap: 30 },
    yAxis: {
      type: 'category',
      inverse: true,
      data: slots.map(({ label }) => label),
      axisTick: { show: false },
      axisLabel: { interval: 0, width: left - 20, overflow: 'break', fontSize: LABEL.font, lineHeight: 11 },
    },
    series: series.flatMap(({ name }, index) => [bars(name, slots, index), whiskers(name, slots, index)]),
  };
}

function bars(name: string, slots: readonly Slot[], index: number) {
  return {
    type: 'bar',
    name,
    itemStyle: { color: COLORS[index % COLORS.length] },
    // Each series has bars only in its own rows.
    barGap: '-100%',
    barCategoryGap: '18%',
    data: slots.map(({ series, metric }) => (series === index && metric ? metric.median : null)),
  };
}

/** Renderer API of a custom series. */
interface Drawing {
  value(dimension: number): number;
  coord(point: [number, number]): [number, number];
}

function whiskers(name: string, slots: readonly Slot[], index: number) {
  const data = slots.flatMap(({ series, metric }, slot) =>
    series === index && metric && metric.max > metric.min ? [[slot, metric.min, metric.max]] : [],
  );
  return {
    type: 'custom',
    name,
    z: 3,
    encode: { x: [1, 2], y: 0 },
    data,
    renderItem: (_: unknown, drawing: Drawing) => {
      const [x1, y] = drawing.coord([drawing.value(1), drawing.value(0)]);
      const [x2] = drawing.coord([drawing.value(2), drawing.value(0)]);
      const line = (fromX: number, fromY: number, toX: number, toY: number) => ({
        type: 'line',
        shape: { x1: fromX, y1: fromY, x2: toX, y2: toY },
        style: { stroke: '#222222', lineWidth: 1.5 },
      });
      return {
        type: 'group',
        children: [line(x1, y, x2, y), line(x1, y - 4, x1, y + 4), line(x2, y - 4, x2, y + 4)],
      };
    },
  };
}

export type Range = Pick<Metric, 'min' | 'max'>;

/** Ratio of largest to smallest above which the axis is logarithmic. */
const WIDE = 50;

export function rangeOf(metrics: readonly Range[]): Range {
  return {
    min: Math.min(...metrics.map(({ min }) => min)),
    max: Math.max(...metrics.map(({ max }) => max)),
  };
}

/**
 * Linear from 0; logarithmic from a power of ten if only the largest figure would be visible.
 * @param fixed also round the upper end, for charts that share a scale
 */
export function scaleOf({ min, max }: Range, fixed = false) {
  // Below the minimum, so that its bar is visible.
  const floor = 10 ** (Math.ceil(Math.log10(min)) - 1);
  if (min > 0 && max / min > WIDE) {
    return {
      type: 'log',
      min: floor,
      startValue: floor,
      ...(fixed && { max: 10 ** Math.ceil(Math.log10(max)) }),
    };
  }
  return { type: 'value', ...(fixed && { min: 0 - roundUp(-min), max: roundUp(max) }) };
}

/** One significant digit; at least 0. */
function roundUp(value: number): number {
  if (value <= 0) return 0;
  const step = 10 ** Math.floor(Math.log10(value));
  return Math.ceil(value / step) * step;
}
