/** Charts of results as SVG, drawn without a browser: a bar for each median, a whisker from minimum to maximum. */
import { BarChart, CustomChart } from 'echarts/charts';
import { GridComponent, LegendComponent, TitleComponent } from 'echarts/components';
import * as echarts from 'echarts/core';
import { SVGRenderer } from 'echarts/renderers';
import type { Metric } from '../harness/result.js';

echarts.use([BarChart, CustomChart, GridComponent, LegendComponent, TitleComponent, SVGRenderer]);

/** Metrics of one unit, of one or more results. */
export interface ChartData {
  readonly title: string;
  readonly unit: string;
  /** One series for each result, by the name that tells it apart. */
  readonly series: readonly { readonly name: string; readonly metrics: readonly Metric[] }[];
}

/** Okabe and Ito's colours, which most people who see colours differently tell apart. */
const COLORS = ['#0072b2', '#e69f00', '#009e73', '#cc79a7', '#56b4e9', '#d55e00'];
const WIDTH = 820;
const BAR = 22;
/** Largest over smallest figure beyond which a linear axis hides the smallest. */
const WIDE = 50;
const AROUND = 110;
const LABEL = 260;
const FONT = 'system-ui, Arial, DejaVu Sans, sans-serif';

/** The SVG of a chart, complete in itself. */
export function chartSvg(data: ChartData): string {
  const names = [...new Set(data.series.flatMap(({ metrics }) => metrics.map(({ name }) => name)))];
  const height = AROUND + names.length * (BAR * data.series.length + 10);
  const chart = echarts.init(null, null, { renderer: 'svg', ssr: true, width: WIDTH, height });
  try {
    chart.setOption(optionOf(data, names));
    return chart.renderToSVGString();
  } finally {
    chart.dispose();
  }
}

function optionOf({ title, unit, series }: ChartData, names: readonly string[]) {
  return {
    animation: false,
    textStyle: { fontFamily: FONT },
    backgroundColor: '#ffffff',
    color: COLORS,
    title: { text: title, left: 12, top: 8, textStyle: { fontSize: 14, fontFamily: FONT } },
    legend: series.length > 1 ? { top: 34, left: 12, data: series.map(({ name }) => name) } : { show: false },
    grid: { left: LABEL, right: 40, top: 62, bottom: 40 },
    xAxis: { ...scaleOf(series), name: unit, nameLocation: 'middle', nameGap: 26 },
    yAxis: {
      type: 'category',
      inverse: true,
      data: [...names],
      axisLabel: { width: LABEL - 20, overflow: 'break', fontSize: 11 },
    },
    series: series.flatMap(({ name, metrics }, index) => {
      const known = new Map(metrics.map((metric) => [metric.name, metric]));
      const rows = names.map((key) => known.get(key));
      return [bars(name, rows, index), whiskers(name, rows, index, series.length)];
    }),
  };
}

/** From 0; logarithmic where a chart would otherwise show its largest figure alone. */
function scaleOf(series: ChartData['series']) {
  const values = series.flatMap(({ metrics }) => metrics.map(({ min }) => min));
  const wide = Math.min(...values) > 0 && Math.max(...values) / Math.min(...values) > WIDE;
  return wide ? { type: 'log' } : { type: 'value', min: 0 };
}

function bars(name: string, rows: readonly (Metric | undefined)[], index: number) {
  return {
    type: 'bar',
    name,
    itemStyle: { color: COLORS[index % COLORS.length] },
    barGap: '8%',
    barCategoryGap: '22%',
    data: rows.map((metric) => metric?.median ?? null),
  };
}

/** What the renderer of a custom series is told and asked. */
interface Drawing {
  value(dimension: number): number;
  coord(point: [number, number]): [number, number];
  barLayout(layout: { count: number; barGap: string; barCategoryGap: string }): { offsetCenter: number }[];
}

function whiskers(name: string, rows: readonly (Metric | undefined)[], index: number, count: number) {
  const data = rows.flatMap((metric, row) =>
    metric && metric.max > metric.min ? [[row, metric.min, metric.max]] : [],
  );
  return {
    type: 'custom',
    name,
    z: 3,
    encode: { x: [1, 2], y: 0 },
    data,
    renderItem: (_: unknown, drawing: Drawing) => {
      const bars = drawing.barLayout({ count, barGap: '8%', barCategoryGap: '22%' });
      const offset = bars[index]?.offsetCenter ?? 0;
      const [x1, y] = drawing.coord([drawing.value(1), drawing.value(0)]);
      const [x2] = drawing.coord([drawing.value(2), drawing.value(0)]);
      const line = (fromX: number, fromY: number, toX: number, toY: number) => ({
        type: 'line',
        shape: { x1: fromX, y1: fromY + offset, x2: toX, y2: toY + offset },
        style: { stroke: '#222222', lineWidth: 1.5 },
      });
      return {
        type: 'group',
        children: [line(x1, y, x2, y), line(x1, y - 4, x1, y + 4), line(x2, y - 4, x2, y + 4)],
      };
    },
  };
}
