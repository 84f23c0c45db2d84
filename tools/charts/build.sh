#!/usr/bin/env bash
# Bundles what pages use of Apache ECharts into one file without any request, and its licences beside it.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
assets=$here/../../symconfig/report/page/assets
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp "$here/package.json" "$here/entry.js" "$work"
cd "$work"
npm install --silent --no-audit --no-fund
npx esbuild entry.js --bundle --minify --format=iife --global-name=echarts --legal-comments=none --outfile=echarts.js
{
  cat node_modules/echarts/LICENSE
  printf '\n'
  cat node_modules/echarts/NOTICE
  printf '\n--- ZRender, which ECharts draws with ---\n'
  cat node_modules/zrender/LICENSE
  printf '\n--- tslib, whose helpers are in the bundle ---\n'
  cat node_modules/tslib/LICENSE.txt
} >echarts.LICENSE.txt
cp echarts.js echarts.LICENSE.txt "$assets"
