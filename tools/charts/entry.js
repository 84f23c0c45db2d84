export { init, use, getInstanceByDom } from "echarts/core";
import { use } from "echarts/core";
import { BarChart, LineChart, ScatterChart, HeatmapChart, CustomChart, ParallelChart } from "echarts/charts";
import { GridComponent, TooltipComponent, LegendComponent, DataZoomComponent, VisualMapComponent, ParallelComponent, BrushComponent, MarkLineComponent, AriaComponent } from "echarts/components";
import { CanvasRenderer, SVGRenderer } from "echarts/renderers";
use([BarChart, LineChart, ScatterChart, HeatmapChart, CustomChart, ParallelChart, GridComponent, TooltipComponent, LegendComponent, DataZoomComponent, VisualMapComponent, ParallelComponent, BrushComponent, MarkLineComponent, AriaComponent, CanvasRenderer, SVGRenderer]);
