#include "report/page_parts.h"

#include <fmt/format.h>

#include "report/svg.h"

namespace lockstep {
namespace {

constexpr const char* kHead = R"(<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">
<title>{title}</title>
<style>
:root{color-scheme:light dark}
body{font:15px/1.5 system-ui,"DejaVu Sans",sans-serif;margin:2rem auto;max-width:1340px;padding:0 1rem}
h1{font-size:1.5rem;margin:0 0 .2rem}p{margin:.2rem 0;color:#7a7a7a}
.figures{display:flex;flex-wrap:wrap;gap:.6rem 2.2rem;margin:1.2rem 0}
.figures div{min-width:7rem}.figures b{display:block;font-size:1.45rem}.figures span{color:#7a7a7a;font-size:.85rem}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,520px),1fr));gap:1rem}
.charts>*{border:1px solid #80808040;border-radius:8px;padding:.4rem}.charts svg{width:100%;height:auto;display:block}
table{border-collapse:collapse;font-size:.9rem;margin:.6rem 0}td,th{padding:.12rem .9rem .12rem 0;text-align:left}
th{color:#7a7a7a;font-weight:500}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}
.wide{overflow-x:auto}details{margin:1.2rem 0}summary{cursor:pointer}.options{columns:3 260px}.options div{break-inside:avoid}
.options i{color:#7a7a7a;font-style:normal}.options div{overflow-wrap:anywhere}
@media(max-width:560px){.charts svg text{font-size:15px}}
</style></head><body>
)";

}  // namespace

std::string page_head(const std::string& title) {
  std::string head = kHead;
  head.replace(head.find("{title}"), 7, svg::escape(title) + " – Lockstep");
  return head;
}

std::string page_table(const CsvTable& table, const std::string& caption) {
  if (table.rows.empty()) return "";
  std::string out =
      fmt::format("<details open><summary>{}</summary><div class=\"wide\"><table><tr>", caption);
  for (const auto& column : table.columns) out += fmt::format("<th class=n>{}</th>", svg::escape(column));
  out += "</tr>\n";
  for (const auto& row : table.rows) {
    out += "<tr>";
    for (const auto& cell : row) out += fmt::format("<td class=n>{}</td>", svg::escape(cell));
    out += "</tr>\n";
  }
  return out + "</table></div></details>\n";
}

}  // namespace lockstep
