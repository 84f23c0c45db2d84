export { init, use, getInstanceByDom } from "echarts/core";
import { use } from "echarts/core";
import { BarChart, LineChart, ScatterChart, CustomChart } from "echarts/charts";
import { GridComponent, TooltipComponent, LegendComponent, DataZoomComponent, MarkLineComponent, AriaComponent } from "echarts/components";
import { CanvasRenderer } from "echarts/renderers";
use([BarChart, LineChart, ScatterChart, CustomChart, GridComponent, TooltipComponent, LegendComponent, DataZoomComponent, MarkLineComponent, AriaComponent, CanvasRenderer]);
